"""Engines that come with crfl."""
