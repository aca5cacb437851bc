"""Real federation on Flower: the core's server step, and clients that train beside their own data.

The server sees no sample. It fixes the number of samples of each client before the first round, and counts a reply
that is missing, late or broken as a zero update that keeps its weight. Modules import Flower when it is needed, so
listing plugins and commands works without it.
"""
