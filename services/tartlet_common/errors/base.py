"""What every error is: a number, fields, a message and a remedy. The errors themselves are in `errors`."""

from __future__ import annotations

import json
from typing import Any, ClassVar, TypeVar

_E = TypeVar("_E", bound="type[TartletError]")

REGISTRY: dict[int, type[TartletError]] = {}


class TartletError(Exception):
    """An error with a number, data fields and a remedy.

    Example:
        >>> from tartlet_common.errors.registry import PageQuotaExceeded
        >>> err = PageQuotaExceeded(held=96, asked=8, limit=100)
        >>> err.number, str(err)
        (301, 'KV pages: the program holds 96 and asked for 8 more; its limit is 100')
    """

    number: ClassVar[int] = 999
    message: ClassVar[str] = "internal error: {detail}"
    remedy: str = "This is a bug in Tartlet: please report it with the log."
    retryable: ClassVar[bool] = False

    def __init__(self, **fields: Any) -> None:
        """Keep the fields; they fill the message. A field `remedy` is for this one error, in place of its kind's."""
        self.fields: dict[str, Any] = fields
        super().__init__(self.text)
        self.remedy = str(fields.get("remedy", self.remedy))
        if self.remedy:
            self.add_note(self.remedy)  # for a traceback that nobody has caught

    @property
    def name(self) -> str:
        """The error's name in the registry."""
        return type(self).__name__

    @property
    def text(self) -> str:
        """The message with its fields filled in, seconds with as many digits as matter."""
        shown = {k: _figures(v) if isinstance(v, float) else v for k, v in self.fields.items()}
        try:
            return self.message.format(**shown)
        except (KeyError, IndexError, ValueError):
            return f"{self.message} {self.fields}"

    @property
    def told(self) -> str:
        """The message and, on a line of its own, the remedy, if there is one."""
        return f"{self}\n{self.remedy}".rstrip("\n")

    @property
    def told_in_line(self) -> str:
        """The same in one text, as a condition's message or a log's has it."""
        return f"{self}: {self.remedy}" if self.remedy else str(self)

    def to_json(self) -> bytes:
        """Fields as compact JSON, for columns that carry an error."""
        return json.dumps(self.fields, separators=(",", ":"), default=str).encode()

    @staticmethod
    def from_wire(number: int, fields_json: bytes | str) -> TartletError:
        """The error that `number` names, rebuilt with its fields; unknown numbers become `UnknownError`."""
        try:
            fields = json.loads(fields_json) if fields_json else {}
        except ValueError:
            fields = {"detail": repr(fields_json)}
        if not isinstance(fields, dict):
            fields = {"detail": fields}
        cls = REGISTRY.get(number)
        if cls is None:
            return UnknownError(code=number, **{k: v for k, v in fields.items() if k != "code"})
        return cls(**fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by number and fields."""
        return (TartletError.from_wire, (self.number, self.to_json()))


def _figures(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"


def register(number: int, *, retryable: bool = False) -> Any:
    """Decorate a class with its number, which nobody else may have."""

    def add(cls: _E) -> _E:
        if number in REGISTRY:
            msg = f"error number {number} is taken by {REGISTRY[number].__name__}"
            raise AssertionError(msg)
        cls.number = number
        cls.retryable = retryable
        REGISTRY[number] = cls
        return cls

    return add


@register(998)
class UnknownError(TartletError):
    """What stands for a number that this side doesn't know."""

    message = "error {code} of a newer release"
    remedy = "Update this side of Tartlet."
