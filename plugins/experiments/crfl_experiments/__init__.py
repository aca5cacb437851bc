"""Run many federations and compare them: sweeps, comparisons, and the figures of the paper."""
