"""What a program used: tokens are counted as they arrive here; control tells the rest at the program's end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tartlet_common.abi import RECORD_STRUCT, Event
from tartlet_protos import control_pb2, programs_pb2
from tartlet_runtime.abi.submission import Submission

_RESULT = int(Event.RESULT)
_KEPT_TICKETS = 65_536
_TOKEN = -1


@dataclass(slots=True)
class _Pace:
    """Number and times of arrivals of one kind."""

    count: int = 0
    gaps: int = 0  # between two of them
    gaps_s: float = 0.0
    last_at_s: float = 0.0
    first_at_s: float = 0.0
    anew: bool = False  # the next arrival begins another answer, so the time before it is no gap

    def add(self, count: int, now_s: float) -> None:
        """Count arrivals."""
        if not count:
            return
        if not self.count:
            self.first_at_s = now_s
        elif not self.anew:
            self.gaps += 1
            self.gaps_s += now_s - self.last_at_s
        self.gaps += count - 1
        self.count += count
        self.last_at_s, self.anew = now_s, False

    @property
    def mean_gap_s(self) -> float:
        """Mean seconds between two arrivals of one answer; 0 if no answer had two."""
        return self.gaps_s / self.gaps if self.gaps else 0.0


@dataclass(slots=True)
class UsageMeter:
    """Counts of one program; times are of the injected monotonic clock, in seconds."""

    launched_s: float
    input_tokens: int = 0
    commands: int = 0
    peak_pages: int = 0
    ended_s: float = 0.0
    earlier_s: float = 0.0  # that earlier runs of the program took
    _asked_s: float = 0.0  # time of the last message before the first token
    _tokens: _Pace = field(default_factory=_Pace)
    _distributions: _Pace = field(default_factory=_Pace)
    _awaited: dict[int, int] = field(default_factory=dict)  # ticket: _TOKEN, or how many distributions

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the engine sampled and the program was given."""
        return self._tokens.count

    def submitted(self, submission: Submission) -> None:
        """Count commands, and remember which will be answered with tokens or distributions."""
        self.commands += submission.count
        if submission.samples or submission.dists:
            awaited = self._awaited
            awaited.update(dict.fromkeys(submission.samples, _TOKEN))
            awaited.update(submission.dists)
            if len(awaited) > _KEPT_TICKETS:  # skipped ones are never answered: forget the oldest
                self._awaited = dict(sorted(awaited.items())[_KEPT_TICKETS // 2 :])

    def delivered(self, rows: bytes, now_s: float) -> None:
        """Count tokens and distributions among packed records."""
        awaited = self._awaited
        if not awaited:
            return
        for op, _, ticket, *_ in RECORD_STRUCT.iter_unpack(rows):
            if ticket in awaited:
                due = awaited.pop(ticket)
                if op != _RESULT:
                    continue
                if due == _TOKEN:
                    self._tokens.add(1, now_s)
                else:
                    self._distributions.add(due, now_s)

    def heard(self, now_s: float) -> None:
        """Note that the program takes a message. Unless it is generating, its next token begins another answer."""
        if not self._awaited:
            self._tokens.anew = self._distributions.anew = True
            if not (self._tokens.count or self._distributions.count):
                self._asked_s = now_s

    def settled(self, settled: control_pb2.ProgramSettled) -> None:
        """Take over the counts that only control knows."""
        self.peak_pages = max(self.peak_pages, settled.peak_pages)
        self.input_tokens += settled.input_tokens

    def of_next_run(self, now_s: float) -> UsageMeter:
        """Return the counts with which the program's next run goes on."""
        return replace(self, launched_s=now_s, earlier_s=self.earlier_s + now_s - self.launched_s, _awaited={})

    def to_proto(self, now_s: float) -> programs_pb2.Usage:
        """Return the counts so far, or at the program's end."""
        pace = self._tokens if self._tokens.count else self._distributions
        return programs_pb2.Usage(
            sampled_tokens=self._tokens.count,
            distributions=self._distributions.count,
            input_tokens=self.input_tokens,
            first_token_s=pace.first_at_s - (self._asked_s or self.launched_s - self.earlier_s) if pace.count else 0.0,
            per_token_s=pace.mean_gap_s,
            wall_s=self.earlier_s + (self.ended_s or now_s) - self.launched_s,
            commands=self.commands,
            peak_pages=self.peak_pages,
        )
