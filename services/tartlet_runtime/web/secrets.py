"""Secrets of the host, which it puts into headers by name. A program and its journal never see their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tartlet_common.capabilities import SECRET, Grant, check_secret
from tartlet_common.egress.hosts import HostPattern, Origin
from tartlet_common.errors.registry import InvalidArgument, InvalidConfig, NotAllowed, Unavailable
from tartlet_runtime.web.asked import Asked

MAX_SECRET_BYTES: Final = 16 << 10
_NAMED: Final = re.compile(r"\{([^{}]*)\}")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]+")
_BIND: Final = "Bind it to the host with http_secrets, a setting of the runtime."
_PART: Final = "Give each tenant's secret a name of its own, or bind NAME=HOST without a tenant if all may use it."


@dataclass(frozen=True, slots=True)
class Binding:
    """A host that a secret may be sent to."""

    tenant: str | None  # None: of every tenant's programs
    name: str
    host: HostPattern


class Secrets:
    """Files with secrets, and the hosts that each is bound to.

    A file is read when its secret is used, so a new value counts from the next request on.
    """

    def __init__(self, directory: Path | None = None, bindings: Sequence[Binding] = ()) -> None:
        """Read nothing yet. `directory` None: there are no secrets."""
        self._directory = directory
        self._bindings = bindings

    @classmethod
    def of(cls, directory: Path | None, entries: Iterable[str]) -> Secrets:
        """Read the bindings of a setting: `[TENANT/]NAME=HOST`. A host without a scheme is bound to https.

        A secret is one file, so all bindings of a name have one owner: a tenant, or all tenants.

        Raises:
            InvalidConfig: one is none, or a name has bindings of two owners, who would share its file.
        """
        bindings: list[Binding] = []
        owners: dict[str, str | None] = {}
        for entry in entries:
            named, equals, host = (part.strip() for part in entry.partition("="))
            tenant, slash, name = named.rpartition("/")
            try:
                pattern = HostPattern.of(host if "://" in host else f"https://{host}")
            except InvalidArgument as e:
                raise InvalidConfig(role="runtime", detail=f"http_secrets: {e.fields['detail']}") from e
            if not equals or not SECRET.fullmatch(name):
                raise InvalidConfig(role="runtime", detail=f"http_secrets: {entry!r}: [TENANT/]NAME=HOST is wanted")
            owner = tenant if slash else None
            if owners.setdefault(name, owner) != owner:
                both = " and ".join(_said(each) for each in (owners[name], owner))
                detail = f"http_secrets: the secret {name} is bound for {both}, who would share its file"
                raise InvalidConfig(role="runtime", detail=detail, remedy=_PART)
            bindings.append(Binding(owner, name, pattern))
        return cls(directory, bindings)

    def headers(self, asked: Asked, tenant: str, grants: Sequence[Grant]) -> list[tuple[str, str]]:
        """Return the headers of a hop with the values of their secrets.

        A text names secrets in braces, as in `Bearer {NAME}`. A text without braces is a name itself.

        Raises:
            InvalidArgument: a text names no secret.
            NotAllowed: a grant doesn't name the secret, or it isn't bound to the host.
            Unavailable: its file is missing, or holds what no header can.
        """
        filled = []
        for header, text in asked.secrets:
            names = _NAMED.findall(text) if "{" in text else [text]
            if not names or not all(SECRET.fullmatch(name) for name in names):
                raise InvalidArgument(
                    argument="secrets", detail=f"{header}: a name, or a text with {{NAME}}, is wanted"
                )
            values = {name: self._value(name, asked.url.origin, tenant, grants) for name in names}
            value = _NAMED.sub(lambda found: values[found[1]], text) if "{" in text else values[text]  # noqa: B023
            filled.append((header, value))
        return filled

    def _value(self, name: str, origin: Origin, tenant: str, grants: Sequence[Grant]) -> str:
        check_secret(grants, name)
        bound = (b for b in self._bindings if b.name == name and b.tenant in (None, tenant))
        if self._directory is None or not any(binding.host.allows(origin) for binding in bound):
            raise NotAllowed(what=f"the secret {name} at {origin}", remedy=_BIND)
        try:
            with (self._directory / name).open("rb") as file:
                data = file.read(MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
        except OSError as e:
            raise Unavailable(what=f"the secret {name}", detail=e.strerror or "it can't be read") from None
        if len(data) > MAX_SECRET_BYTES or not _VALUE.fullmatch(data):
            raise Unavailable(what=f"the secret {name}", detail="it isn't one line of text that a header can hold")
        return data.decode("latin-1")


def _said(owner: str | None) -> str:
    return "all tenants" if owner is None else f"the tenant {owner!r}"
