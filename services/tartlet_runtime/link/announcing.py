"""What a new link with control begins with: this runtime's programs, and what control must know to take them over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tartlet_protos import control_pb2
from tartlet_runtime.link.incoming import Programs
from tartlet_runtime.program.program import Program

_STARTS_BYTES: Final = 2 << 20  # of one frame, well below the message limit
_KEPT_BYTES: Final = 1 << 20  # beside them
_PART_BYTES: Final = 2 << 20  # of the histories in one frame


class Announcement:
    """The programs that a Hello names, and the frames that follow it."""

    def __init__(self, programs: Programs, hello: control_pb2.RuntimeHello) -> None:
        """Put into a Hello what fits."""
        self._programs = programs
        self._later: list[control_pb2.RuntimeFrame] = []
        kept = programs.kept()
        fit = how_many_fit(kept, _KEPT_BYTES)
        hello.kept.extend(kept[:fit])
        while kept := kept[fit:]:
            fit = how_many_fit(kept, _KEPT_BYTES)
            self._later.append(control_pb2.RuntimeFrame(kept=kept[:fit]))
        self.running = running = programs.control_back()
        fit = how_many_fit(running)
        hello.programs.extend(running[:fit])
        while running := running[fit:]:
            fit = how_many_fit(running)
            self._later.append(control_pb2.RuntimeFrame(starts=running[:fit]))

    def frames(self) -> Iterator[control_pb2.RuntimeFrame]:
        """Yield what Hello had no room for, then the histories of the programs that go on."""
        yield from self._later
        yield from frames_of_histories(self._programs, self.remembered())

    def remembered(self) -> list[Program]:
        """Return the announced programs whose histories control gets."""
        found = [self._programs.get(start.handle) for start in self.running if start.history]
        return [program for program in found if program is not None]

    def ends(self) -> list[control_pb2.ProgramEnd]:
        """Return the ends of programs since Hello was made, and of those that wait for control's word alone."""
        get = self._programs.get
        gone = [start.handle for start in self.running if get(start.handle) is None]
        return [
            *(control_pb2.ProgramEnd(handle=handle, failed=True) for handle in gone),
            *(
                control_pb2.ProgramEnd(handle=p.handle, failed=p.error is not None, goes_on=p.goes_on)
                for p in self.remembered()
                if p.departed
            ),
        ]


def frames_of_histories(programs: Programs, remembered: Sequence[Program]) -> Iterator[control_pb2.RuntimeFrame]:
    """Yield the frames that tell control what programs have sent and were told."""
    if not remembered:
        return
    yield control_pb2.RuntimeFrame(models=programs.models())
    frame, size = control_pb2.RuntimeFrame(), 0
    for program in remembered:
        data = program.history.message().SerializeToString()
        for at in range(0, max(len(data), 1), _PART_BYTES):
            part = data[at : at + _PART_BYTES]
            if size and size + len(part) > _PART_BYTES:
                yield frame
                frame, size = control_pb2.RuntimeFrame(), 0
            frame.histories.add(handle=program.handle, data=part, more=at + len(part) < len(data))
            size += len(part)
    yield frame


def how_many_fit(
    items: Sequence[control_pb2.ProgramStart] | Sequence[control_pb2.KeptProgram], limit: int = _STARTS_BYTES
) -> int:
    """Return how many of the first ones one message carries."""
    size = 0
    for count, item in enumerate(items):
        size += item.ByteSize() + 8
        if size > limit:
            return max(1, count)
    return len(items)
