"""Ways to split training samples over clients."""
