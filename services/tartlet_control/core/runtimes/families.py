"""Programs that programs have started: children that aren't detached end with their parent's run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from tartlet_common.capabilities import SharedCeilings, check_shared
from tartlet_common.errors.registry import ParentEnded, TartletError
from tartlet_control.tables.programs import ProgramState


class Programs(Protocol):
    """The programs that are there."""

    programs: dict[str, ProgramState]
    ceilings: SharedCeilings

    @property
    def ended_at(self) -> Mapping[str, object]:
        """Programs that have ended, by id, as far as they are remembered."""

    def kill(self, program: ProgramState, error: TartletError) -> None:
        """End a program."""


class Starting(Protocol):
    """A runtime's request to start a program."""

    @property
    def program_id(self) -> str:
        """The program's id."""

    @property
    def parent(self) -> str:
        """The id of the program that has started it, or ""."""

    @property
    def tenant(self) -> str:
        """Whose program it is."""

    @property
    def name(self) -> str:
        """The program's name."""

    @property
    def detached(self) -> bool:
        """Whether it outlives its parent."""


class Families:
    """The children that end with their parents, by parent.

    A child may be known before its parent: runtimes come back to a new control one by one.
    """

    def __init__(self, known: Programs) -> None:
        """Begin without children."""
        self._known = known
        self._children: dict[str, dict[str, None]] = {}  # by the parent's id
        self._missing_s: dict[str, float] = {}  # since when a parent is unknown

    def check(self, request: Starting) -> None:
        """Check that a program may begin.

        Raises:
            ParentEnded: its parent has ended, and it isn't detached.
            NotAllowed: its parent may not start it.
        """
        if not request.parent:
            return
        parent = self._known.programs.get(request.parent)
        if parent is None and not request.detached:
            raise ParentEnded(parent=request.parent)
        ceiling = self._known.ceilings.of_tenant(request.tenant)
        check_shared((ceiling,) if parent is None else parent.grants, "spawn", request.name)

    def add(self, request: Starting) -> None:
        """Note that a program runs."""
        if request.parent and not request.detached:
            self._children.setdefault(request.parent, {})[request.program_id] = None

    def ended(self, program_id: str, *, is_end: bool) -> None:
        """Take the end of a program, or, without `is_end`, that its runtime will announce it anew."""
        if is_end and program_id in self._children:
            self._end_children(program_id)

    def _end_children(self, parent: str) -> None:
        self._missing_s.pop(parent, None)
        for child in self._children.pop(parent, ()):
            program = self._known.programs.get(child)
            if program is not None:
                self._known.kill(program, ParentEnded(parent=parent))

    def tend(self, now: float, returning: Callable[[str], bool], grace_s: float) -> None:
        """End children whose parents have ended while control was away, and forget ended ones.

        Args:
            now: monotonic seconds.
            returning: whether a program has no runtime at the moment.
            grace_s: how long a parent may be unknown.
        """
        for parent, children in list(self._children.items()):
            if parent in self._known.programs or returning(parent):
                self._missing_s.pop(parent, None)
            elif parent in self._known.ended_at or now - self._missing_s.setdefault(parent, now) >= grace_s:
                self._end_children(parent)
            else:
                continue
            for child in [c for c in children if c not in self._known.programs and not returning(c)]:
                del children[child]
            if not children:
                self._children.pop(parent, None)
