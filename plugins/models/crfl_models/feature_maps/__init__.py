"""Fixed, public feature maps."""
