"""A real federation on Flower: the server's step of the core, and clients that train beside their own data.

The server sees no sample. It counts what nodes registered before the first round, and takes a reply that is missing,
late or broken for a zero update that keeps its weight. What needs Flower imports it when it is used, so plugins and
commands can be listed without it.
"""
