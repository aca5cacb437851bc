"""The commands that come with crfl beside those of the core: data, proofs of runs, new plugins, formulas."""
