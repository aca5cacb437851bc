"""Datasets and partitioners that come with crfl."""
