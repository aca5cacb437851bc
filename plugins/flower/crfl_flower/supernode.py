"""Flower's SuperNode as `crfl federation join` starts it: it polls more often, and ends when it cannot continue.

Flower's SuperNode stays alive without asking for messages once an unexpected answer of the server has ended its loop or
its heartbeat. This one ends, and `crfl federation join` starts another one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

MAX_PAUSE_SECONDS = 0.5
"""Seconds between two polls for messages; Flower waits three seconds, in every round."""


class ShortPauses:
    """Replacement for `time` in Flower's loop that limits every wait."""

    def sleep(self, seconds: float) -> None:
        """Sleep for at most `MAX_PAUSE_SECONDS`."""
        time.sleep(min(seconds, MAX_PAUSE_SECONDS))


def main() -> None:
    """Start the SuperNode.

    The first argument is the id of the parent process, the others are `flower-supernode`'s.
    """
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_parent_process_monitor(int(sys.argv.pop(1)))
    vars(start_client_internal)["time"] = ShortPauses()
    threading.excepthook = end_process
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    os._exit(1)  # the thread of Flower's local server would keep the process alive


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End the process because a thread failed.

    Such a thread is the one that sends heartbeats.
    """
    traceback.print_exception(failure.exc_value)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
