"""The commands that come with crfl beside those of the core: advice, data, proofs of runs, new plugins, formulas."""
