"""Decides which commands of a batch run, and which are skipped, failed or refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tartlet_common.engine.step import U32, BatchResult, Status
from tartlet_common.errors.registry import TartletError, UnknownResource
from tartlet_worker.csr import Bools, Ints, any_by

EMPTY_I32 = np.zeros(0, np.int32)
EMPTY_F32 = np.zeros(0, np.float32)
EMPTY_U8 = np.zeros(0, np.uint8)

_OK, _SKIPPED, _FAILED, _REFUSED = (int(s) for s in (Status.OK, Status.SKIPPED, Status.FAILED, Status.REFUSED))


class BatchStatuses:
    """The statuses of one batch while its handler decides on them.

    A handler calls `skip` and `fail` for all commands, then `settle`. The first failure of a lane stands, later
    commands of the lane are refused, and the lane stays in `poisoned` until a step resets it.
    """

    def __init__(self, lane: U32, poisoned: set[int]) -> None:
        self._lane, self._poisoned = lane, poisoned
        self.status = np.zeros(len(lane), np.uint8)  # [B] Status
        self._errors: dict[int, TartletError] = {}
        self.all_run = True  # no command is refused, skipped or failed; this usual case has fast paths
        if poisoned:
            refused = np.isin(lane, np.fromiter(poisoned, np.uint32, len(poisoned)))
            self.status[refused] = _REFUSED
            self.all_run = not refused.any()

    def skip(self, flags: Bools, indptr: Ints | None = None) -> None:
        """Skip commands that read an ended slot or embed: flags [B], or [total] with the indptr of the commands."""
        if not flags.any():
            return
        if indptr is not None:
            flags = any_by(flags, indptr)
        self.status[flags & (self.status == _OK)] = _SKIPPED
        self.all_run = False

    def fail(self, flags: Bools, error: Callable[[int], TartletError], indptr: Ints | None = None) -> None:
        """Fail commands that can't run: flags as for `skip`; `error(b)` makes the error of command b."""
        if not flags.any():
            return
        if indptr is not None:
            flags = any_by(flags, indptr)
        for b in np.flatnonzero(flags & (self.status == _OK)).tolist():
            self.status[b] = _FAILED
            self._errors[b] = error(b)
        self.all_run = False

    def check_ids(self, kind: str, ids: npt.NDArray[np.int32], indptr: Ints, count: int) -> bool:
        """Fail commands that name ids outside 0 .. count - 1; return whether all ids are inside."""
        if not len(ids) or ids.view(np.uint32).max() < count:  # a negative id is a large unsigned one
            return True
        outside = (ids < 0) | (ids >= count)

        def error(b: int) -> TartletError:
            mine = slice(int(indptr[b]), int(indptr[b + 1]))
            return UnknownResource(kind=kind, id=int(ids[mine][outside[mine]][0]))

        self.fail(outside, error, indptr)
        return False

    def settle(self) -> npt.NDArray[np.int64]:
        """Refuse the commands after a failure in its lane; return the commands that run, in order."""
        if self.all_run:
            return one_each(len(self.status))[:-1]
        if self._errors:
            broken: set[int] = set()
            for b, lane in enumerate(self._lane.tolist()):
                if lane in broken:
                    self.status[b] = _REFUSED
                    self._errors.pop(b, None)
                elif self.status[b] == _FAILED:
                    broken.add(lane)
            self._poisoned |= broken
        return np.flatnonzero(self.status == _OK)

    @property
    def skipped(self) -> npt.NDArray[np.int64]:
        """The commands that are skipped, once `settle` was called."""
        return EMPTY_I64 if self.all_run else np.flatnonzero(self.status == _SKIPPED)

    def result(
        self,
        token: npt.NDArray[np.int32] = EMPTY_I32,
        ended: npt.NDArray[np.uint8] = EMPTY_U8,
        logprob: npt.NDArray[np.float32] = EMPTY_F32,
        dist: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]] = (
            EMPTY_I32,
            EMPTY_I32,
            EMPTY_F32,
        ),
    ) -> BatchResult:
        """Make the answer to the batch; its `detail` holds the fields of each failure's error as JSON."""
        error = np.zeros(len(self.status), np.uint32)
        for b, failure in self._errors.items():
            error[b] = failure.number
        indptr, tokens, probs = dist
        return BatchResult(
            status=self.status,
            error=error,
            token=token,
            ended=ended,
            logprob=logprob,
            dist_indptr=indptr,
            dist_token=tokens,
            dist_prob=probs,
            detail=tuple(self._errors[b].to_json().decode() for b in sorted(self._errors)),
        )


EMPTY_I64 = np.zeros(0, np.int64)


@lru_cache(maxsize=4096)
def one_each(count: int) -> npt.NDArray[np.int64]:
    """Return the indptr [count + 1] of commands with one value each. The array is shared and read-only."""
    indptr = np.arange(count + 1)
    indptr.setflags(write=False)
    return indptr
