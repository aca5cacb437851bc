"""Fixtures of tests with Ray."""

from __future__ import annotations

from tests.ray_nodes import cluster, hard_deadline, mark, two_nodes

__all__ = ["cluster", "hard_deadline", "mark", "two_nodes"]
