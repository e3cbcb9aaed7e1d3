"""Exceptions that a program may meet, by name and by group.

A failed command raises at the line that awaits it; commands behind it in the same queue fail with the same cause until
`reset(queue)`.

Example:
    >>> from inferlet import errors
    >>> issubclass(errors.PageQuotaExceeded, errors.LimitError)
    True
    >>> str(errors.from_wire(301, b'{"held":96,"asked":8,"limit":100}'))
    'KV pages: the program holds 96 and asked for 8 more; its limit is 100'
"""

from __future__ import annotations

import json

from inferlet._generated.error_registry import *  # noqa: F403 - the generated tree is this module's content
from inferlet._generated.error_registry import REGISTRY, TartletError, UnknownError


class CommandSkipped(TartletError):
    """The command did nothing, because it read a token slot or an embed that a stop token had ended."""

    message = "the command was skipped: a stop token had ended the slot or embed that it read"
    remedy = ""


class CommandCancelled(TartletError):
    """The command was dropped by `cancel` before it ran."""

    message = "the command was cancelled before it ran"
    remedy = ""


class NothingToWaitFor(TartletError):
    """All tasks wait, and no command, message or timer is outstanding that could wake one of them."""

    message = "the program waits for something that can't happen: no command, message or timer is outstanding"
    remedy = "A task awaits a future, event or queue that no other task will fill. Find it in the notes below."


class ChildFailed(TartletError):
    """A program that this one had started has failed; `__cause__` is its error."""

    message = "the program {child}, which this one had started, has failed: {detail}"
    remedy = ""


class ChildEnded(TartletError):
    """A program that this one had started has ended, and sends no more messages."""

    message = "the program {child}, which this one had started, has ended: there are no more messages"
    remedy = "Await its result(), or iterate over it, which stops at its end."


for _cls in REGISTRY.values():
    _cls.__module__ = __name__  # where programs find it, and what tracebacks show


def from_wire(number: int, fields_json: bytes) -> TartletError:
    """Return the exception of an error number, with its fields; `UnknownError` for a number that is not known."""
    try:
        fields = json.loads(fields_json) if fields_json else {}
    except ValueError:
        fields = {"detail": repr(fields_json)}
    if not isinstance(fields, dict):
        fields = {"detail": fields}
    cls = REGISTRY.get(number)
    if cls is None:
        return UnknownError(code=number, **{key: value for key, value in fields.items() if key != "code"})
    return cls(**fields)
