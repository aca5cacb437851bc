"""Files that people write and fetch: configs that extend each other, and published data.

A config file is read (`reading`) and merged onto what it extends (`trees`), overrides reach into it (`overrides`), and
every value remembers where it was written (`origins`), so that an error can say so. Data files are found by name and
known by their checksum (`published`). Nothing here knows what the values mean.
"""
