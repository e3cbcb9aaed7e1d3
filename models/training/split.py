"""The held-out split: a problem belongs to evaluation if the hash of its key falls into one bucket of sixteen.

The key names the problem and not its wording, so that no rephrasing (or swapped operands, or another order of the
numbers to sort) of an evaluated problem is ever trained on.
"""

from __future__ import annotations

import hashlib

NUM_BUCKETS = 16
HELD_OUT_BUCKET = 0


def is_held_out(key: str) -> bool:
    """Whether the problem named `key` is kept for evaluation."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % NUM_BUCKETS == HELD_OUT_BUCKET
