"""Commands that show runs."""
