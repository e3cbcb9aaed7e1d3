"""Fresh random numbers for each run of the tests, repeatable by one variable.

A failing test shows the seed of its run. `TARTLET_TEST_SEED=N pytest ...` draws the same numbers again.
"""

from __future__ import annotations

import os
import secrets
from zlib import crc32

import numpy as np

SEED = int(os.environ.get("TARTLET_TEST_SEED") or secrets.randbits(31))


def seed_of(name: str) -> int:
    """Return the seed, below 2**31, of one use: the run's seed and the name of the use decide it."""
    return crc32(f"{SEED} {name}".encode()) >> 1


def rng(name: str) -> np.random.Generator:
    """Return a generator whose numbers the run's seed and the name of the use decide."""
    return np.random.default_rng(seed_of(name))
