"""Sizes that both ends of every connection know. Pure, so that decisions may rest on them."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 4 << 20
"""The largest message that a role sends."""
MAX_FRAME_BYTES: Final = MAX_MESSAGE_BYTES + (64 << 10)
"""The largest message that a receiver accepts."""
