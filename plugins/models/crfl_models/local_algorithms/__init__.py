"""Algorithms of local training that come with crfl."""
