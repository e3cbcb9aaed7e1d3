"""Packs the sampler of a context for the device."""

from __future__ import annotations

import struct
from collections.abc import Collection

from inferlet._wire.packing import pack_sampling
from inferlet.errors import InvalidArgument
from inferlet.sampling import Sampler


def pack_sampler(sampler: Sampler, seed: int, draw: int, stop: Collection[int]) -> bytes:
    """Return the payload of a SAMPLE without options.

    Args:
        sampler: how the token is chosen. Its own seed wins over `seed`.
        seed: the key of the random numbers.
        draw: the number of the stream of random numbers.
        stop: the stop tokens.

    Raises:
        InvalidArgument: a number doesn't fit its bits.
    """
    try:
        return pack_sampling(
            sampler.resolved_temperature,
            sampler.top_k or 0,
            1.0 if sampler.top_p is None else sampler.top_p,
            sampler.min_p or 0.0,
            seed=seed if sampler.seed is None else sampler.seed,
            draw=draw,
            stop=sorted(stop),
        )
    except (OverflowError, struct.error):
        raise InvalidArgument(argument="sampler", detail=f"its numbers don't fit 32 bits: {sampler}") from None
