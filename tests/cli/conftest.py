"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cli.terminals import Terminal


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts commands on terminals of their own, and ends what is left of them."""
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
