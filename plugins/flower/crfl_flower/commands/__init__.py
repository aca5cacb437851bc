"""Commands of a federation, which `crfl` finds as plugins."""
