"""Models and feature maps that come with crfl."""
