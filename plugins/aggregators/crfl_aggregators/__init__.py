"""Aggregation rules and stages that come with crfl."""
