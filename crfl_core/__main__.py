"""Run the command line: `python -m crfl_core` is `crfl`."""

from crfl_core.cli import main

if __name__ == "__main__":
    main()
