"""A command whose module speaks when it is imported."""

print("one moment, please")


def loud() -> None:
    """Draw loudly."""
