"""Philox4x32-10 (Salmon et al., SC'11): the random numbers of sampling, with the same bits on every backend.

`uniform(seed, position, draw)`:

- key: the two 32-bit words of the 64-bit `seed`, low word first;
- counter: (`position`, `draw`, 0, 0), `position` that of the sampled embed, `draw` the command's stream number;
- ten rounds of Philox4x32; with outputs x0 and x1 the number is ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53: a float64 in
  [0, 1) with 53 random bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: U64, key: U64) -> U64:
    """Run ten rounds on counter [4, N] and key [2, N], 32-bit words held in uint64; return [4, N]."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _SHIFT) ^ c1 ^ k0, p1 & _LOW, (p0 >> _SHIFT) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.stack([c0, c1, c2, c3])


def uniform(
    seed: npt.ArrayLike, position: npt.ArrayLike, draw: npt.ArrayLike
) -> npt.NDArray[np.float64]:  # [N] in [0, 1)
    """Return uniform numbers for N samples; the arguments are [N] integers (see the module)."""
    s = np.atleast_1d(np.asarray(seed, np.uint64))
    zero = np.zeros_like(s)
    counter = np.stack(
        [np.asarray(position, np.uint64) & _LOW | zero, np.asarray(draw, np.uint64) & _LOW | zero, zero, zero]
    )
    x = philox4x32(counter, np.stack([s & _LOW, s >> _SHIFT]))
    high, low = x[0] >> np.uint64(5), x[1] >> np.uint64(6)
    return np.asarray((high.astype(np.float64) * 2.0**26 + low.astype(np.float64)) / 2.0**53)
