"""Flower's SuperNode as `crfl join` starts it: it ends when we do, and asks for messages more often."""

from __future__ import annotations

import sys
import time

MAX_PAUSE_SECONDS = 0.5
"""Seconds between two questions whether there is a message; Flower waits for three, in every round."""


class ShortPauses:
    """Time as Flower's loop sees it: no wait is longer than our pause."""

    def sleep(self, seconds: float) -> None:
        """Wait, but not for long."""
        time.sleep(min(seconds, MAX_PAUSE_SECONDS))


def main() -> None:
    """Start it: the first argument is the process to outlive nobody, the others are those of `flower-supernode`."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_parent_process_monitor(int(sys.argv.pop(1)))
    vars(start_client_internal)["time"] = ShortPauses()
    flower_supernode()


if __name__ == "__main__":
    main()
