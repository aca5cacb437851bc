"""Many generators at once: the states that NumPy would give them, computed for all of them together.

Seeding takes NumPy longer than shuffling a few samples does. What it computes is public and will not change:
`SeedSequence`, after M. E. O'Neill's seed_seq_fe, spreads a key over four words and makes the seed of `SFC64` of them,
which is then advanced twelve times
(https://numpy.org/doc/stable/reference/random/bit_generators/generated/numpy.random.SeedSequence.html). The first state
of every call is compared with NumPy's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

POOL = 4
"""Words of 32 bits in the pool of a `SeedSequence`, and in a key."""
SEED = 6
"""Words of 32 bits in the seed of an `SFC64`."""
WARM_UP = 12
LEFT = np.uint32(0xCA01F9DD)
RIGHT = np.uint32(0x4973F715)
HALF = np.uint32(16)

Words = NDArray[np.uint32]


def generators(keys: Sequence[bytes]) -> Iterator[np.random.Generator]:
    """Generators of `SFC64` whose seeds are these keys of 16 bytes, as little-endian numbers.

    It is one generator in one state after the other: use each before the next is asked for.
    """
    if not keys:
        return
    bits = np.random.SFC64(int.from_bytes(keys[0], "little"))
    generator = np.random.Generator(bits)
    first = bits.state
    found = states(np.frombuffer(b"".join(keys), "<u4").reshape(-1, POOL).astype(np.uint32))
    if not np.array_equal(first["state"]["state"], found[0]):  # another NumPy than all that are known
        yield from (np.random.Generator(np.random.SFC64(int.from_bytes(key, "little"))) for key in keys)
        return
    inner = first["state"]
    for inner["state"] in found:
        bits.state = first
        yield generator


def states(keys: Words) -> NDArray[np.uint64]:
    """The states of `SFC64` that are seeded with these keys, (n, 4) each."""
    pool = hashed(keys.T, SPREAD[:, :POOL])
    for source in range(POOL):
        first = POOL + source * (POOL - 1)
        others = [place for place in range(POOL) if place != source]
        mixed = LEFT * pool[others] - RIGHT * hashed(pool[source], SPREAD[:, first : first + POOL - 1])
        pool[others] = mixed ^ (mixed >> HALF)
    words = hashed(pool[np.arange(SEED) % POOL], DRAWN).astype(np.uint64)
    a, b, c = words[::2] | (words[1::2] << np.uint64(32))
    for counter in range(1, WARM_UP + 1):
        output = a + b + np.uint64(counter)
        a = b ^ (b >> np.uint64(11))
        b = c + (c << np.uint64(3))
        c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + output
    return np.stack([a, b, c, np.full_like(a, WARM_UP + 1)], axis=1)


def hashed(words: Words, constants: Words) -> Words:
    """One row of words with each pair of constants."""
    product = (words ^ constants[0, :, None]) * constants[1, :, None]
    return product ^ (product >> HALF)


def powers(first: int, factor: int, count: int) -> Words:
    """`first factor^i` modulo 2^32 for i = 0, ..., count - 1, and below them the same for i + 1."""
    found = [first * pow(factor, exponent, 2**32) % 2**32 for exponent in range(count + 1)]
    return np.array([found[:-1], found[1:]], np.uint32)


SPREAD = powers(0x43B0D7E5, 0x931E8875, POOL * POOL)
DRAWN = powers(0x8B51F9DD, 0x58F38DED, SEED)
