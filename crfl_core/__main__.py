"""`python -m crfl_core` is `crfl`."""

from crfl_core.cli import main

main()
