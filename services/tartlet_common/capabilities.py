"""What a program may reach: what its launch, its entry in the catalogue and its tenant's ceiling all allow. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Self

from tartlet_common.egress.hosts import HostPattern, Origin
from tartlet_common.errors.registry import InvalidArgument, InvalidConfig, NotAllowed

LAUNCH: Final = "the launch (--allow-http, --allow-secret, or `capabilities` of a LaunchSpec)"
ENTRY: Final = "the program's entry in the catalogue (spec.capabilities of an Inferlet)"
CEILING: Final = "the setting http_hosts of the runtime (--allow-http HOST of `tartlet serve`)"
MAX_PATTERNS: Final = 256
SECRET: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}")
"""A secret's name, which is also a file's."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one of the places allows that have a say."""

    place: str  # where to add what is missing, for errors
    http: tuple[str, ...] = ()  # patterns of hosts
    secrets: tuple[str, ...] = ()  # names

    @classmethod
    def of(cls, place: str, http: Iterable[str], secrets: Iterable[str] = ()) -> Self:
        """Check patterns and names.

        Raises:
            InvalidArgument: one of them is none, or there are too many.
        """
        grant = cls(place, tuple(http), tuple(secrets))
        for what, given in (("http", grant.http), ("secrets", grant.secrets)):
            if len(given) > MAX_PATTERNS:
                raise InvalidArgument(argument=f"capabilities.{what}", detail=f"more than {MAX_PATTERNS} of them")
        for text in grant.http:
            pattern_of(text)
        for name in grant.secrets:
            if not SECRET.fullmatch(name):
                detail = f"{name[:64]!r} is no name of a secret: letters, digits and . _ - make one"
                raise InvalidArgument(argument="capabilities.secrets", detail=detail)
        return grant

    def to_json(self) -> dict[str, Any]:
        """Return the grant as JSON values, for journals."""
        return {"place": self.place, "http": list(self.http), "secrets": list(self.secrets)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return the grant of a journal."""
        return cls(str(told["place"]), tuple(told.get("http", ())), tuple(told.get("secrets", ())))


def check_http(grants: Sequence[Grant], origin: Origin) -> None:
    """Check that a request may go to a host.

    Raises:
        NotAllowed: one of the grants has no pattern that allows it. Its remedy names the place.

    Example:
        >>> from tartlet_common.egress.hosts import Url
        >>> check_http([Grant("a", ("*.example.org",))], Url.of("https://a.example.org/").origin)
    """
    for grant in grants:
        if not any(pattern_of(text).allows(origin) for text in grant.http):
            raise NotAllowed(what=f"HTTP requests to {origin}", remedy=f"Name the host in {grant.place}.")


def check_secret(grants: Sequence[Grant], name: str) -> None:
    """Check that a program may use a secret.

    Raises:
        NotAllowed: one of the grants doesn't name it. Its remedy names the place.
    """
    for grant in grants:
        if name not in grant.secrets:
            raise NotAllowed(what=f"the secret {name}", remedy=f"Name the secret in {grant.place}.")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that programs of each tenant get, whatever launches and the catalogue say."""

    everyone: tuple[str, ...] = ()
    tenants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[str]) -> Self:
        """Read a setting's entries: `HOST` for everyone, `TENANT=HOST` for one tenant.

        Raises:
            InvalidConfig: one isn't a pattern of hosts.

        Example:
            >>> Ceilings.of(["example.org", "team-a=*.example.com"]).of_tenant("team-a").http
            ('example.org', '*.example.com')
        """
        everyone: list[str] = []
        tenants: dict[str, list[str]] = {}
        for entry in entries:
            tenant, equals, host = entry.rpartition("=")
            try:
                pattern_of(host)
            except InvalidArgument as e:
                raise InvalidConfig(role="runtime", detail=f"http_hosts: {e.fields['detail']}") from e
            (tenants.setdefault(tenant.strip(), []) if equals else everyone).append(host.strip())
        return cls(tuple(everyone), {tenant: tuple(hosts) for tenant, hosts in tenants.items()})

    def of_tenant(self, tenant: str) -> Grant:
        """Return the ceiling of one tenant."""
        return Grant(CEILING, (*self.everyone, *self.tenants.get(tenant, ())))


@lru_cache(maxsize=1024)
def pattern_of(text: str) -> HostPattern:
    """Return the pattern of a text.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        return HostPattern.of(text)
    except InvalidArgument as e:
        raise InvalidArgument(argument="capabilities.http", detail=e.fields["detail"]) from e
