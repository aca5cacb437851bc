"""Flower's SuperNode as `crfl join` starts it: it ends with its parent and polls for messages more often."""

from __future__ import annotations

import sys
import time

MAX_PAUSE_SECONDS = 0.5
"""Seconds between two polls for messages; Flower waits three seconds, in every round."""


class ShortPauses:
    """Replacement for `time` in Flower's loop that limits every wait."""

    def sleep(self, seconds: float) -> None:
        """Sleep for at most `MAX_PAUSE_SECONDS`."""
        time.sleep(min(seconds, MAX_PAUSE_SECONDS))


def main() -> None:
    """Start the SuperNode. The first argument is the id of the parent process, the others are `flower-supernode`'s."""
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_parent_process_monitor(int(sys.argv.pop(1)))
    vars(start_client_internal)["time"] = ShortPauses()
    flower_supernode()


if __name__ == "__main__":
    main()
