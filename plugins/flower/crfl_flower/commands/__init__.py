"""Commands for federations: `crfl federation`, `crfl serve` and `crfl join`."""
