"""Attacks that come with crfl."""
