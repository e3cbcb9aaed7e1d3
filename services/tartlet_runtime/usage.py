"""What a program used: tokens as they arrive here, the rest from control when everything it held is free."""

from __future__ import annotations

from dataclasses import dataclass, field

from tartlet_common.abi import Event
from tartlet_protos import control_pb2, programs_pb2
from tartlet_runtime.submission import ROW_STRUCT

_RESULT = int(Event.RESULT)
_KEPT_TICKETS = 65_536


@dataclass(slots=True)
class UsageMeter:
    """Counts of one program; times are of the injected monotonic clock, in seconds."""

    launched_s: float
    sampled_tokens: int = 0
    input_tokens: int = 0
    commands: int = 0
    peak_pages: int = 0
    first_token_at_s: float = 0.0
    last_token_at_s: float = 0.0
    ended_s: float = 0.0
    _samples: set[int] = field(default_factory=set)

    def submitted(self, count: int, samples: list[int]) -> None:
        """Count commands; `samples` are the tickets of those that sample a token."""
        self.commands += count
        if samples:
            self._samples.update(samples)
            if len(self._samples) > _KEPT_TICKETS:  # skipped ones are never answered: forget the oldest
                self._samples = set(sorted(self._samples)[_KEPT_TICKETS // 2 :])

    def delivered(self, rows: bytes, now_s: float) -> None:
        """Look for sampled tokens among records of abi.RECORD."""
        samples = self._samples
        if not samples:
            return
        for row in ROW_STRUCT.iter_unpack(rows):
            if row[2] in samples:
                samples.discard(row[2])
                if row[0] == _RESULT:
                    self.sampled_tokens += 1
                    if not self.first_token_at_s:
                        self.first_token_at_s = now_s
                    self.last_token_at_s = now_s

    def settled(self, settled: control_pb2.ProgramSettled) -> None:
        """Take over what only control knows."""
        self.peak_pages = settled.peak_pages
        self.input_tokens = settled.input_tokens

    def to_proto(self, now_s: float) -> programs_pb2.Usage:
        """The counts so far, or at the program's end."""
        gaps = self.sampled_tokens - 1
        return programs_pb2.Usage(
            sampled_tokens=self.sampled_tokens,
            input_tokens=self.input_tokens,
            first_token_s=self.first_token_at_s - self.launched_s if self.first_token_at_s else 0.0,
            per_token_s=(self.last_token_at_s - self.first_token_at_s) / gaps if gaps > 0 else 0.0,
            wall_s=(self.ended_s or now_s) - self.launched_s,
            commands=self.commands,
            peak_pages=self.peak_pages,
        )
