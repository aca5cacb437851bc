"""Benchmarks that print ratios: against a peer or the machine's own limit, measured in the same run."""
