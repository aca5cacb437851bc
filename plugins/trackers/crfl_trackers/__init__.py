"""Trackers that come with crfl."""
