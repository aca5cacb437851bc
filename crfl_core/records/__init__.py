"""Plain data that flows between plugins, rounds and certificates."""
