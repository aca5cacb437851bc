"""Compare what a checkout computes with what another one computed, bit for bit."""
