"""Commands for federations: `crfl federation init`, `serve` and `join`."""
