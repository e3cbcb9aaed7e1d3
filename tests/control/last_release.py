"""A worker of the last release, which speaks protocol 1: it knows neither page tables nor options of `sample`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tartlet_common.engine.step import Kind, Step, StepResult
from tartlet_common.engine.step_codec import step_from_proto, step_to_proto
from tartlet_common.errors.registry import MalformedSubmission
from tartlet_protos import engine_pb2
from tartlet_worker.engine import Following, ignore_computing, nothing_follows
from tartlet_worker.fake import FakeEngine

PROTOCOL: Final = 1
_COLUMNS: Final = {Kind.EMBED_TXT: 6, Kind.FORWARD: 12, Kind.COPY_KVPAGE: 6, Kind.MASK_KVPAGE: 3}
_COLUMNS.update({Kind.GET_NEXT_DIST: 4, Kind.SAMPLE: 11})


class LastRelease(FakeEngine):
    """A fake engine that takes frames as the last release did, and refuses those that it can't read."""

    def take(self, frame: engine_pb2.StepFrame, computing: Callable[[], None] = ignore_computing) -> StepResult:
        """Run the step of a frame.

        Raises:
            MalformedSubmission: it has a column, or a part, that the last release didn't have.
        """
        for batch in frame.batches:
            needed = _COLUMNS[Kind(batch.kind)]
            if len(batch.columns) != needed:
                raise MalformedSubmission(detail=f"kind {batch.kind} has {needed} columns, not {len(batch.columns)}")
        if frame.tables:
            raise MalformedSubmission(detail="unknown part: tables")
        return super().step(step_from_proto(frame), computing)

    def step(
        self, step: Step, computing: Callable[[], None] = ignore_computing, following: Following = nothing_follows
    ) -> StepResult:
        """Run a step as it comes out of its frame."""
        return self.take(step_to_proto(step), computing)
