"""Begins the next run of a program that has asked for one by `continue_as_new`, as the same program for everybody else.

Control has freed what the run before held. The journal begins anew and is stored before control is asked again. The
output with its clients, the messages that were not received, the key and the id stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tartlet_common.errors.registry import NotAllowed, TartletError
from tartlet_protos import common_pb2
from tartlet_runtime.abi.next_run import next_seed
from tartlet_runtime.journal.records import Kind
from tartlet_runtime.program.program import Program
from tartlet_runtime.program.world import World
from tartlet_runtime.serving.recording import Recording

_LEAST_S = 1e-3
"""The deadline of a run whose program's deadline has passed."""


class Continuing:
    """Makes the programs of next runs."""

    def __init__(self, recording: Recording, world: World[Program], enter: Callable[[Program], None]) -> None:
        """`enter` puts a program into the table and asks control to start it."""
        self._recording = recording
        self._world = world
        self._enter = enter

    def begin(self, before: Program, handle: int) -> None:
        """Let a program go on with its next run, whose number on the link with control is `handle`."""
        asked = before.next_run
        assert asked is not None
        after = self._next(before, handle)
        try:
            self._take_over(before, after)
        except TartletError as e:
            asked.error = asked.error or e
        self._enter(after)
        if asked.error is not None:
            after.end(asked.error)

    def _next(self, before: Program, handle: int) -> Program:
        asked, spec, now_s = before.next_run, before.spec, self._world.clock.now()
        assert asked is not None
        ran_s, limits = now_s - before.usage.launched_s, spec.limits
        if limits.deadline_s:
            limits = replace(limits, deadline_s=max(_LEAST_S, limits.deadline_s - ran_s))
        limits = replace(limits, children=limits.children - before.children.detached)  # the others end with their run
        spec = replace(spec, args=asked.args, seed=next_seed(spec.seed), limits=limits)
        after = Program(spec, handle, self._world, before.make_guest, before.asked_s, before.span)
        after.clock_start_ns = max(after.clock_start_ns, before.clock_start_ns + int(ran_s * 1e9))
        before.output.take_place_of(after.output)
        after.output, after.usage = before.output, before.usage.of_next_run(now_s)
        after.tie = before.tie
        after.tie.go_on(after.end)
        after.model, after.accepted = before.model, True
        after.reserved_bytes = before.reserved_bytes
        return after

    def _take_over(self, before: Program, after: Program) -> None:
        asked = before.next_run
        assert asked is not None
        if before.spec.language == common_pb2.Source.NATIVE:
            raise NotAllowed(what="continue_as_new outside the sandbox")
        messages = [*asked.messages, *before.inbox.untaken()]
        after.mail = before.mail.moved_to(after.inbox)
        after.inbox.restore(messages, 0)
        if before.recorder is None:
            return
        self._recording.begin_anew(before.recorder, after)
        assert after.recorder is not None
        after.mail.record(after.recorder, after.spec.limits.journal_bytes)
        for message in messages:  # without their keys, which are among those of the mail
            after.recorder.record(0, bytes(1) + message, kind=Kind.MESSAGE)
        after.recorder.begin()
        after.recorder.inherit(before.recorder)
