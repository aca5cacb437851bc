"""Server optimisers that come with crfl."""
