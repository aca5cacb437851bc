"""The commands that come with crfl beside those of the core: `new`, `data`, `radius` and `advise`."""
