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
SHARED_CEILING: Final = "control's settings allowed_topics, allowed_names and allowed_spawn"
SHARED: Final = {"topics": "topic", "names": "name", "spawn": "inferlet"}
"""What programs share with others and start, which control checks: the capability, and one of what it allows."""
MAX_PATTERN_BYTES: Final = 256
MAX_PATTERNS: Final = 256
SECRET: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}")
"""A secret's name, which is also a file's."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one of the places allows that have a say."""

    place: str  # where to add what is missing, for errors
    http: tuple[str, ...] = ()  # patterns of hosts
    secrets: tuple[str, ...] = ()  # names
    topics: tuple[str, ...] | None = None  # patterns; None: this place has no say
    names: tuple[str, ...] | None = None  # patterns of names of contexts, likewise
    spawn: tuple[str, ...] | None = None  # patterns of names of programs, likewise

    @classmethod
    def of(cls, place: str, http: Iterable[str], secrets: Iterable[str] = (), **shared: Iterable[str] | None) -> Self:
        """Check patterns and names. `shared`: patterns by the names in `SHARED`.

        Raises:
            InvalidArgument: one of them is none, or there are too many.
        """
        said = {what: tuple(given) for what, given in shared.items() if given is not None}
        grant = cls(place, tuple(http), tuple(secrets), **said)
        for what, given in (("http", grant.http), ("secrets", grant.secrets), *said.items()):
            if len(given) > MAX_PATTERNS:
                raise InvalidArgument(argument=f"capabilities.{what}", detail=f"more than {MAX_PATTERNS} of them")
        for text in grant.http:
            pattern_of(text)
        for name in grant.secrets:
            if not SECRET.fullmatch(name):
                detail = f"{name[:64]!r} is no name of a secret: letters, digits and . _ - make one"
                raise InvalidArgument(argument="capabilities.secrets", detail=detail)
        for what, patterns in said.items():
            for pattern in patterns:
                check_pattern(f"capabilities.{what}", pattern)
        return grant

    def to_json(self) -> dict[str, Any]:
        """Return the grant as JSON values, for journals."""
        told: dict[str, Any] = {"place": self.place, "http": list(self.http), "secrets": list(self.secrets)}
        return told | {what: list(given) for what in SHARED if (given := getattr(self, what)) is not None}

    @property
    def limits_sharing(self) -> bool:
        """Whether it has a say about what programs share."""
        return any(getattr(self, what) is not None for what in SHARED)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return the grant of a journal."""
        said = {what: tuple(map(str, told[what])) for what in SHARED if what in told}
        return cls(str(told["place"]), tuple(told.get("http", ())), tuple(told.get("secrets", ())), **said)


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


def check_pattern(argument: str, pattern: str) -> None:
    """Check a pattern of names.

    Raises:
        InvalidArgument: it is empty or too long, or has a * elsewhere than at its end.
    """
    if not 0 < len(pattern.encode()) <= MAX_PATTERN_BYTES or "*" in pattern[:-1]:
        detail = f"{pattern[:64]!r} is neither a name nor the beginning of one with a * behind it"
        raise InvalidArgument(argument=argument, detail=detail)


def check_shared(grants: Iterable[Grant], what: str, name: str) -> None:
    """Check that a program may use a topic or a name of a context, or may start a program.

    Raises:
        NotAllowed: one of the grants has no pattern that allows it. Its remedy names the place.

    Example:
        >>> check_shared([Grant("a"), Grant("b", topics=("jobs.*", "log"))], "topics", "jobs.new")
    """
    for grant in grants:
        patterns = getattr(grant, what)
        if patterns is not None and not any(_matches(pattern, name) for pattern in patterns):
            kind = SHARED[what]
            raise NotAllowed(what=f"the {kind} {name[:128]!r}", remedy=f"Name the {kind} in {grant.place}.")


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@dataclass(frozen=True, slots=True)
class SharedCeilings:
    """The most that programs of each tenant may share and start, whatever launches and the catalogue say."""

    everyone: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: dict.fromkeys(SHARED, ("*",)))
    tenants: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Iterable[str]]) -> Self:
        """Read settings' entries, by the names in `SHARED`: `PATTERN` for everyone, `TENANT=PATTERN` for one tenant.

        Raises:
            InvalidConfig: one is no pattern.

        Example:
            >>> SharedCeilings.of({"topics": ["log", "a=jobs.*"], "names": [], "spawn": ["*"]}).of_tenant("a").topics
            ('log', 'jobs.*')
        """
        everyone: dict[str, tuple[str, ...]] = dict.fromkeys(settings, ())
        tenants: dict[str, dict[str, tuple[str, ...]]] = {}
        for what, entries in settings.items():
            for entry in entries:
                tenant, equals, pattern = entry.partition("=")
                try:
                    check_pattern(f"allowed_{what}", pattern.strip() if equals else entry)
                except InvalidArgument as e:
                    raise InvalidConfig(role="control", detail=f"allowed_{what}: {e.fields['detail']}") from e
                own = tenants.setdefault(tenant.strip(), {}) if equals else everyone
                own[what] = (*own.get(what, ()), pattern.strip() if equals else entry)
        return cls(everyone, tenants)

    def of_tenant(self, tenant: str) -> Grant:
        """Return the ceiling of one tenant. It has no say where everything is allowed."""
        own = self.tenants.get(tenant, {})
        allowed = {what: (*given, *own.get(what, ())) for what, given in self.everyone.items()}
        return Grant(SHARED_CEILING, **{what: given for what, given in allowed.items() if "*" not in given})


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
