"""Identifiers as types, so that a page can't be passed where an embed is meant."""

from __future__ import annotations

import os
from typing import NewType

PageId = NewType("PageId", int)
"""Physical KV page of one engine. Chosen by control, never seen by a runtime or a program."""
EmbedId = NewType("EmbedId", int)
"""Physical embedding slot of one engine (one token each)."""
SlotId = NewType("SlotId", int)
"""Physical token slot of one engine (holds one sampled token)."""
VirtualId = NewType("VirtualId", int)
"""A page, embed or token slot as its program names it (dense, per program and kind)."""
QueueId = NewType("QueueId", int)
"""Command queue as its program names it; 0 is the default queue."""
Lane = NewType("Lane", int)
"""A command queue as one engine sees it: unique per engine while the queue lives."""
Ticket = NewType("Ticket", int)
"""Number of a command within its program, counted from 1 by the guest."""
Handle = NewType("Handle", int)
"""A program on one runtime-control connection (u32, chosen by the runtime)."""
ProgramId = NewType("ProgramId", str)
"""UUID of a program, canonical text form."""


def new_program_id() -> ProgramId:
    """A fresh random program id: a UUID of version 4, which `uuid` takes thrice as long to make."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return ProgramId(f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}")
