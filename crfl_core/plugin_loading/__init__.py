"""Find, check and guard plugins."""
