"""Show runs: figures, HTML pages, and their commands."""
