"""API keys of the HTTP gateway: their form, their hashes, and the file that names them.

A key is `tlk_`, 256 random bits and a checksum, in letters and digits. The checksum lets scanners of leaked secrets
recognise a key, and a mistyped key is refused without a look at the file. The file holds SHA-256 hashes only: a key
has 256 random bits, so a slow hash would protect nothing more. The file's JSON also holds limits of tenants:

    {"keys": [{"id": "3f9a", "hash": "ab...", "tenant": "team-a", "name": "laptop", "created": 0, "expires": null}],
     "tenants": {"team-a": {"requests_per_minute": 600, "tokens_per_minute": 0, "concurrency": 32}}}
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tartlet_common.errors.registry import InvalidConfig

PREFIX: Final = "tlk_"
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY: Final = 43
_CHECK: Final = 6
_FORM: Final = re.compile(rf"{PREFIX}([0-9A-Za-z]{{{_BODY}}})([0-9A-Za-z]{{{_CHECK}}})")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
TENANT: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
"""The names that a tenant may have."""
_REMEDY: Final = "Let `tartlet keys` write the file, or mend the named entry."


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the file names it.

    Attributes:
        id: Names the key in logs and for `tartlet keys revoke`.
        hash: The key's SHA-256, in hexadecimal.
        tenant: For whom its requests run.
        name: A name for people.
        created: Seconds since the epoch.
        expires: Seconds since the epoch from which on the key is refused; None: never.
    """

    id: str
    hash: str
    tenant: str
    name: str = ""
    created: float = 0.0
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of one tenant; 0 stands for the gateway's setting."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The content of a file of keys."""

    keys: tuple[ApiKey, ...] = ()
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the file's text."""
        tenants = {name: asdict(limits) for name, limits in self.tenants.items()}
        return json.dumps({"keys": [asdict(key) for key in self.keys], "tenants": tenants}, indent=2) + "\n"


def new_key() -> str:
    """Return a new key.

    Example:
        >>> key = new_key()
        >>> len(key), well_formed(key), well_formed(key[:-1] + "!")
        (53, True, False)
    """
    body = "".join(secrets.choice(_ALPHABET) for _ in range(_BODY))
    return PREFIX + body + _checksum(body)


def well_formed(key: str) -> bool:
    """Whether a text has a key's form, and the checksum is right."""
    found = _FORM.fullmatch(key)
    return found is not None and _checksum(found[1]) == found[2]


def key_hash(key: str) -> str:
    """Return the hash that stands for a key in the file."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(text: str) -> KeyFile:
    """Read a file's text.

    Raises:
        InvalidConfig: it isn't the JSON of keys; the detail names the entry.

    Example:
        >>> read_keys('{"keys": [{"id": "a", "hash": "' + "0" * 64 + '", "tenant": "t"}]}').keys[0].tenant
        't'
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _bad(f"not JSON: {e}") from e
    if not isinstance(given, dict) or not isinstance(given.get("keys", []), list):
        raise _bad("an object with a list `keys` is wanted")
    keys = tuple(_key(entry, at) for at, entry in enumerate(given.get("keys", [])))
    if len({key.id for key in keys}) < len(keys):
        raise _bad("two keys have the same id")
    tenants = given.get("tenants", {})
    if not isinstance(tenants, dict):
        raise _bad("tenants: an object is wanted")
    return KeyFile(keys, {name: _limits(name, entry) for name, entry in tenants.items()})


def check_tenant(name: str) -> None:
    """Check a tenant's name.

    Raises:
        InvalidConfig: it isn't letters, digits and . _ -, up to 64.
    """
    if not TENANT.fullmatch(name):
        raise _bad(f"tenant {name[:64]!r}: letters, digits and . _ - inside make a name, up to 64")


def _key(entry: Any, at: int) -> ApiKey:
    try:
        key = ApiKey(**entry)
    except TypeError as e:
        raise _bad(f"keys[{at}]: {e}") from e
    texts = (key.id, key.hash, key.tenant, key.name)
    numbers = (key.created, 0 if key.expires is None else key.expires)
    if not all(isinstance(t, str) for t in texts) or not all(isinstance(n, int | float) for n in numbers):
        raise _bad(f"keys[{at}]: a field has the wrong type")
    if not key.id or not _HASH.fullmatch(key.hash):
        raise _bad(f"keys[{at}]: an id and a SHA-256 in lower-case hexadecimal are wanted")
    check_tenant(key.tenant)
    return key


def _limits(name: str, entry: Any) -> TenantLimits:
    check_tenant(name)
    try:
        limits = TenantLimits(**entry)
    except TypeError as e:
        raise _bad(f"tenants.{name}: {e}") from e
    if not all(type(n) is int and n >= 0 for n in asdict(limits).values()):
        raise _bad(f"tenants.{name}: whole numbers from 0 are wanted")
    return limits


def _bad(detail: str) -> InvalidConfig:
    return InvalidConfig(role="gateway", detail=f"keys: {detail}", remedy=_REMEDY)


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = ""
    for _ in range(_CHECK):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
