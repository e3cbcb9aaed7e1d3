"""What a SPAWN asks for, checked. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from tartlet_common.errors.registry import InvalidArgument
from tartlet_runtime.abi.limits import ProgramLimits
from tartlet_runtime.wasm.determinism import SEED_BYTES

_TEXTS: Final = ("inferlet", "model")
_LIMITS: Final = {
    "memory_bytes": int,
    "cpu_slice_s": float,
    "pages": int,
    "commands_in_flight": int,
    "output_bytes": int,
    "journal_bytes": int,
    "deadline_s": float,
}
"""The limits that a parent may name, as of `common_pb2.Limits`."""
_KNOWN: Final = frozenset({*_TEXTS, "args", "detached", "children", "limits"})
_MOST: Final = (1 << 32) - 1
_MOST_CHILDREN: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A child as its parent asks for it."""

    inferlet: str = ""  # a name in the catalogue; "": the parent's own source
    args: tuple[str, ...] = ()
    model: str = ""  # "": the inferlet's, else the parent's
    detached: bool = False  # it outlives its parent
    children: int = 0  # how many programs it may start itself
    limits: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, payload: bytes) -> Asked:
        """Read the payload of a SPAWN.

        Raises:
            InvalidArgument: it isn't as docs/abi.md says.

        Example:
            >>> Asked.of(b'{"inferlet": "echo", "args": ["a"]}').args
            ('a',)
        """
        try:
            told = json.loads(payload)
            json.dumps(told, ensure_ascii=False).encode()  # a lone surrogate is no text
        except (ValueError, RecursionError) as e:
            raise _refusal("child", f"not JSON: {e}") from e
        if not isinstance(told, dict):
            raise _refusal("child", "a JSON object is wanted")
        if unknown := sorted(told.keys() - _KNOWN):
            raise _refusal("child", f"unknown fields {ascii(unknown)[:128]}")
        for name in _TEXTS:
            if not isinstance(told.get(name, ""), str):
                raise _refusal(name, "a text is wanted")
        args = told.get("args", [])
        if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
            raise _refusal("args", "a list of texts is wanted")
        if not isinstance(told.get("detached", False), bool):
            raise _refusal("detached", "true or false is wanted")
        children = told.get("children", 0)
        if type(children) is not int or not 0 <= children <= _MOST_CHILDREN:
            raise _refusal("children", f"a whole number from 0 to {_MOST_CHILDREN} is wanted")
        return cls(
            told.get("inferlet", ""),
            tuple(args),
            told.get("model", ""),
            told.get("detached", False),
            children,
            _limits(told.get("limits", {})),
        )


def _limits(told: Any) -> Mapping[str, Any]:
    if not isinstance(told, dict):
        raise _refusal("limits", "a JSON object is wanted")
    for name, value in told.items():
        kind = _LIMITS.get(name)
        if kind is None:
            raise _refusal("limits", f"{ascii(name)[:64]} is none of {', '.join(_LIMITS)}")
        if type(value) not in (int, kind) or not 0 <= value <= _MOST:
            raise _refusal(f"limits.{name}", f"a number from 0 to {_MOST} is wanted")
    return told


def _refusal(argument: str, detail: str) -> InvalidArgument:
    return InvalidArgument(argument=argument, detail=detail)


def within(limits: ProgramLimits, parent: ProgramLimits, left_s: float, children: int) -> dict[str, Any]:
    """Return the limits of a child that `resolve` doesn't cap: a child gets no more than its parent has.

    Args:
        limits: the child's, capped by the parent's as by a server's.
        parent: the parent's.
        left_s: seconds until the parent's deadline, at least a moment; 0: it has none.
        children: how many programs the child may start.

    Example:
        >>> from tartlet_common.config.settings import RuntimeSettings
        >>> from tartlet_runtime.abi.limits import default_limits
        >>> has = default_limits(RuntimeSettings())
        >>> within(has, has, 2.5, 0)
        {'pages': 0, 'deadline_s': 2.5, 'children': 0}
    """
    return {
        "pages": min(limits.pages or parent.pages, parent.pages or limits.pages),
        "deadline_s": min(limits.deadline_s or left_s, left_s or limits.deadline_s),
        "children": children,
    }


def key_of(parent: str, run: bytes, ticket: int) -> str:
    """Return the idempotency key of a child: its parent, the parent's run, and the ticket."""
    return f"{parent}/{run.hex()[:16]}/{ticket}"


def sending_key(parent: str, run: bytes, ticket: int) -> bytes:
    """Return the key of a message to a child: sent again with it, the message arrives once."""
    return blake2b(key_of(parent, run, ticket).encode(), digest_size=16, person=b"to a child").digest()


def seed_of(run: bytes, ticket: int) -> bytes:
    """Return a child's seed, which follows from that of its parent."""
    return blake2b(run + ticket.to_bytes(4, "little"), digest_size=SEED_BYTES, person=b"child").digest()
