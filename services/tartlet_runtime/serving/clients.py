"""Clients that a program waits for, because they lost it with a runtime and may find it again."""

from __future__ import annotations

import asyncio

from tartlet_common.errors.registry import Disconnected
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.spec import State


def expect_client(program: Program, grace_s: float, loop: asyncio.AbstractEventLoop) -> None:
    """Let a program wait for readers for `grace_s`. A program of a `run` ends if its client doesn't return."""
    program.output.awaits_reader = True
    loop.call_later(grace_s, _without_client, program)


def _without_client(program: Program) -> None:
    if program.state >= State.ENDING:
        return
    program.output.expect_no_more()
    if program.spec.tied and not program.stays and not program.output.has_readers:
        program.end(Disconnected())
