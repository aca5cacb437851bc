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
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
HALF = np.uint32(16)

Words = NDArray[np.uint32]
Constants = Iterator[tuple[np.uint32, np.uint32]]


def generators(keys: Sequence[bytes]) -> Iterator[np.random.Generator]:
    """Generators of `SFC64` whose seeds are these keys of 16 bytes, as little-endian numbers.

    It is one generator in one state after the other: use each before the next is asked for.
    """
    if not keys:
        return
    bits = np.random.SFC64(int.from_bytes(keys[0], "little"))
    generator, first = np.random.Generator(bits), bits.state
    found = states(np.frombuffer(b"".join(keys), "<u4").reshape(-1, POOL).astype(np.uint32))
    if not np.array_equal(first["state"]["state"], found[0]):  # another NumPy than all that are known
        yield from (np.random.Generator(np.random.SFC64(int.from_bytes(key, "little"))) for key in keys)
        return
    for state in found:
        bits.state = first | {"state": {"state": state}}
        yield generator


def states(keys: Words) -> NDArray[np.uint64]:
    """The states of `SFC64` that are seeded with these keys, (n, 4) each."""
    constants = products(0x43B0D7E5, 0x931E8875)
    pool = [hashed(word, constants) for word in keys.T]
    for source in range(POOL):
        for target in range(POOL):
            if source != target:
                mixed = LEFT * pool[target] - RIGHT * hashed(pool[source], constants)
                pool[target] = mixed ^ (mixed >> HALF)
    constants = products(0x8B51F9DD, 0x58F38DED)
    words = [hashed(pool[place % POOL], constants).astype(np.uint64) for place in range(SEED)]
    a, b, c = (low | (high << np.uint64(32)) for low, high in zip(words[::2], words[1::2], strict=True))
    for counter in range(1, WARM_UP + 1):
        output = a + b + np.uint64(counter)
        a, b = b ^ (b >> np.uint64(11)), c + (c << np.uint64(3))
        c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + output
    return np.stack([a, b, c, np.full_like(a, WARM_UP + 1)], axis=1)


def products(first: int, factor: int) -> Constants:
    """Pairs of neighbours in `first`, `first factor`, `first factor^2`, ..., modulo 2^32."""
    constant = first
    while True:
        following = constant * factor % 2**32
        yield np.uint32(constant), np.uint32(following)
        constant = following


def hashed(words: Words, constants: Constants) -> Words:
    """One word of each key, with the next pair of constants."""
    flipped, factor = next(constants)
    product = (words ^ flipped) * factor
    return product ^ (product >> HALF)
