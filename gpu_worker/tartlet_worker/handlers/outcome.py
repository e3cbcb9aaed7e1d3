"""Who of a batch runs: refused lanes, skipped and failed commands (contracts 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tartlet_common.errors import TartletError, UnknownResource
from tartlet_common.step import U32, BatchResult, Status
from tartlet_worker.csr import Bools, Ints, any_by

EMPTY_I32 = np.zeros(0, np.int32)
EMPTY_F32 = np.zeros(0, np.float32)
EMPTY_U8 = np.zeros(0, np.uint8)


class Outcome:
    """Statuses of one batch while it is decided.

    Use `skip` and `fail` on all commands, then `settle`: the first failure of a lane stands, what follows it in the
    lane is refused, and the lane stays poisoned in `poisoned` until a step resets it.
    """

    def __init__(self, lane: U32, poisoned: set[int]) -> None:
        self._lane, self._poisoned = lane, poisoned
        self.status = np.zeros(len(lane), np.uint8)  # [B] Status
        self._errors: dict[int, TartletError] = {}
        if poisoned:
            self.status[np.isin(lane, np.fromiter(poisoned, np.uint32, len(poisoned)))] = Status.REFUSED

    def skip(self, flags: Bools) -> None:
        """Commands [B] that read something ended."""
        self.status[flags & (self.status == Status.OK)] = Status.SKIPPED

    def fail(self, flags: Bools, error: Callable[[int], TartletError]) -> None:
        """Commands [B] that can't run; `error(b)` says why."""
        if not flags.any():
            return
        for b in np.flatnonzero(flags & (self.status == Status.OK)).tolist():
            self.status[b] = Status.FAILED
            self._errors[b] = error(b)

    def check_ids(self, kind: str, ids: Ints, indptr: Ints, count: int) -> bool:
        """Fail commands that name ids outside 0 .. count - 1; True if there were none."""
        if not len(ids) or (ids.min() >= 0 and ids.max() < count):
            return True
        outside = (ids < 0) | (ids >= count)

        def error(b: int) -> TartletError:
            mine = slice(int(indptr[b]), int(indptr[b + 1]))
            return UnknownResource(kind=kind, id=int(ids[mine][outside[mine]][0]))

        self.fail(any_by(outside, indptr), error)
        return False

    def settle(self) -> npt.NDArray[np.int64]:
        """Refuse what follows a failure in its lane; returns the commands that run, in order."""
        if self._errors:
            broken: set[int] = set()
            for b, lane in enumerate(self._lane.tolist()):
                if lane in broken:
                    self.status[b] = Status.REFUSED
                    self._errors.pop(b, None)
                elif self.status[b] == Status.FAILED:
                    broken.add(lane)
            self._poisoned |= broken
        return np.flatnonzero(self.status == Status.OK)

    @property
    def skipped(self) -> Bools:
        """[B]: commands that are skipped."""
        return np.asarray(self.status == Status.SKIPPED)

    def result(
        self,
        token: npt.NDArray[np.int32] = EMPTY_I32,
        ended: npt.NDArray[np.uint8] = EMPTY_U8,
        logprob: npt.NDArray[np.float32] = EMPTY_F32,
        dist: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]] | None = None,
    ) -> BatchResult:
        """The answer to the batch; `detail` holds the fields of each failure's error as JSON."""
        error = np.zeros(len(self.status), np.uint32)
        for b, failure in self._errors.items():
            error[b] = failure.number
        indptr, tokens, probs = dist if dist is not None else (EMPTY_I32, EMPTY_I32, EMPTY_F32)
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


ONE_EACH: dict[int, npt.NDArray[np.int64]] = {}


def one_each(count: int) -> npt.NDArray[np.int64]:
    """indptr [count + 1] of commands that have one value each."""
    if count not in ONE_EACH:
        ONE_EACH[count] = np.arange(count + 1)
    return ONE_EACH[count]
