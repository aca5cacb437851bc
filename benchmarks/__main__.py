"""`python -m benchmarks [NAME ...]` runs all benchmarks, or those named."""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from pathlib import Path

SUPPORT = {"__main__", "peer_rounds", "random_images", "round_runner", "timing"}


def main() -> None:
    known = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name not in SUPPORT]
    chosen = sys.argv[1:] or known
    for name in chosen:
        if name not in known:
            sys.exit(f"there is no benchmark {name!r}: there are {', '.join(known)}")
    for name in chosen:
        print(f"== {name}")
        import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
