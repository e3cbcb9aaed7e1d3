"""The base of all errors: a number, fields, a message and a remedy. The errors themselves are in `registry`."""

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
        """Keep the fields, which fill the message. A field `remedy` replaces the remedy of the class."""
        self.fields: dict[str, Any] = fields
        super().__init__(self.text)
        self.remedy = str(fields.get("remedy", self.remedy))
        if self.remedy:
            self.add_note(self.remedy)  # shown below a traceback

    @property
    def name(self) -> str:
        """The error's name in the registry."""
        return type(self).__name__

    @property
    def text(self) -> str:
        """The message with its fields filled in; floats have six significant digits."""
        shown = {k: _figures(v) if isinstance(v, float) else v for k, v in self.fields.items()}
        try:
            return self.message.format(**shown)
        except (KeyError, IndexError, ValueError):
            return f"{self.message} {self.fields}"

    @property
    def explained(self) -> str:
        """The message and, on a line of its own, the remedy, if there is one."""
        return f"{self}\n{self.remedy}".rstrip("\n")

    @property
    def explained_in_line(self) -> str:
        """The message and the remedy on one line, for logs and for conditions of Kubernetes objects."""
        return f"{self}: {self.remedy}" if self.remedy else str(self)

    def to_json(self) -> bytes:
        """Fields as compact JSON, for columns that carry an error."""
        return json.dumps(self.fields, separators=(",", ":"), default=str).encode()

    @staticmethod
    def from_wire(number: int, fields_json: bytes | str) -> TartletError:
        """Rebuild the error that `number` names, with its fields; an unknown number becomes `UnknownError`."""
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
    """Decorate an error class with its number, which must be unique."""

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
    """Stands for an error whose number this release doesn't know."""

    message = "error {code}, which this release of Tartlet doesn't know"
    remedy = "Upgrade Tartlet here to the release of the other side."
