"""Names of contexts: what a tenant's programs have exported, for later programs to import (`export_kvpage`, Pie 4).

A name of a tenant and a model stands for an immutable version: tokens, and a digest of them. Another export under the
name makes another version. A version outlives its program. It ends when it was unused for its time, or when the
tenant's budget asks for it: then the one that was unused for longest goes first. A version that a running program has
imported stays.

A version holds tokens, not pages. The rows that hold them are in the trees of engines (`tables.prefixes`), where named
rows go last. Where they are gone, whoever imports the name computes them, and leaves them there again.

A program's last command on each name is remembered while the program runs. A program that didn't hear the answer before
control died tells it again. Then nothing happens, whatever others have done with the name since.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tartlet_common.errors.registry import InvalidArgument, NameBudgetExceeded, UnknownName

MAX_NAMES: Final = 1024
"""Names of one tenant."""
MAX_TOKENS: Final = 1 << 19
"""Tokens of one name: an answer holds them all."""
MAX_NAME_BYTES: Final = 256
MOST_DONE: Final = 1024
"""Names of which a program's last command is remembered. A program has fewer answers on their way."""
MOST_DOERS: Final = 1 << 16
"""Programs of which commands are remembered."""
_FIRST_PRINTABLE: Final = " "


class Key(NamedTuple):
    """What a name is known by."""

    tenant: str
    model_digest: str
    name: str


class Done(NamedTuple):
    """A command on a name that took effect: its ticket, and which version the name had then; 0: none."""

    ticket: int
    number: int


@dataclass(slots=True)
class Version:
    """What a name stands for.

    Attributes:
        number: counts the versions of the name, from 1 on.
        tokens: of the context.
        digest: of the tokens, the model and the options under which they are computed (16 bytes).
        rows: the digests of the full rows.
        program_id, ticket: the command that exported it, so that the command takes effect once. A program's next run
            is another one here.
        ttl_s: seconds without use after which it ends; 0: never.
        used_s: when it was last exported or imported, in seconds since 1970.
        page_size: tokens of a row.
        adapter: digest of the LoRA adapter under which they were computed; "" for none.
        importers: the running programs that have imported it.
    """

    number: int
    tokens: array[int]
    digest: bytes
    rows: list[bytes]
    program_id: str
    ticket: int
    ttl_s: float
    used_s: float
    page_size: int = 0
    adapter: str = ""
    importers: set[str] = field(default_factory=set)


class Names:
    """The names of all tenants."""

    def __init__(self, *, tenant_tokens: int, pins: dict[bytes, int]) -> None:
        """Begin without names.

        Args:
            tenant_tokens: the budget of each tenant.
            pins: digests of rows that engines give up last, with how many names end there; shared with their trees.
        """
        self._tenant_tokens = tenant_tokens
        self._pins = pins
        self._of_tenant: dict[str, OrderedDict[Key, Version]] = {}  # the longest unused first
        self._tokens: dict[str, int] = {}
        self._imported: dict[str, dict[Key, Version]] = {}  # by program
        self.on_change: Callable[[Key, Version | None], None] = _nothing
        """Called with a name that has a new version, was used, or (None) is gone."""
        self._done: OrderedDict[str, OrderedDict[Key, Done]] = OrderedDict()
        self.on_done: Callable[[str, Key], None] = _nothing
        """Called with a program and a name of which the program's last command is another now, or forgotten."""

    def __len__(self) -> int:
        return sum(map(len, self._of_tenant.values()))

    def __iter__(self) -> Iterator[tuple[Key, Version]]:
        """Yield all names, a tenant's longest unused first."""
        for versions in self._of_tenant.values():
            yield from versions.items()

    def find(self, key: Key) -> Version | None:
        """Return what a name stands for; None if it stands for nothing."""
        return self._versions(key.tenant).get(key)

    def listed(self, tenant: str, model_digest: str) -> list[tuple[Key, Version]]:
        """Return a tenant's names for a model, sorted."""
        versions = self._versions(tenant).items()
        return sorted(((k, v) for k, v in versions if k.model_digest == model_digest), key=lambda each: each[0].name)

    def export(self, key: Key, made: Version) -> Version:
        """Let a name stand for a version, unless it does already. `made.number` is set.

        Raises:
            NameBudgetExceeded: the tenant's budget doesn't hold the version beside those that are in use.
        """
        old, before = self.find(key), self.done(made.program_id, key)
        if old is not None and old.program_id == made.program_id and made.ticket <= old.ticket:
            return old
        if before is not None and made.ticket <= before.ticket:
            made.number = max(1, before.number)
            return made
        if old is not None and old.digest == made.digest:
            old.program_id, old.ticket, old.ttl_s = made.program_id, made.ticket, made.ttl_s
            self._use(key, old, made.used_s)
            self.remember(made.program_id, key, Done(made.ticket, old.number))
            return old
        if old is not None:
            made.number = old.number + 1
        self._make_room(key, len(made.tokens) - (0 if old is None else len(old.tokens)), int(old is None))
        if old is not None:
            self._drop(key, told=False)
        self.put(key, made)
        self.on_change(key, made)
        self.remember(made.program_id, key, Done(made.ticket, made.number))
        return made

    def put(self, key: Key, version: Version) -> None:
        """Take a version as it is, for a name that stands for nothing."""
        self._of_tenant.setdefault(key.tenant, OrderedDict())[key] = version
        self._tokens[key.tenant] = self._tokens.get(key.tenant, 0) + len(version.tokens)
        if version.rows:
            last = version.rows[-1]
            self._pins[last] = self._pins.get(last, 0) + 1

    def take(self, key: Key, program_id: str, now_s: float) -> Version:
        """Import a name: it stays at least as long as the program.

        Raises:
            UnknownName: it stands for nothing.
        """
        version = self.find(key)
        if version is None:
            raise UnknownName(name=key.name)
        version.importers.add(program_id)
        self._imported.setdefault(program_id, {})[key] = version
        self._use(key, version, now_s)
        return version

    def imported(self, program_id: str) -> Iterable[Version]:
        """Return the versions that a program has imported."""
        return self._imported.get(program_id, {}).values()

    def drop(self, key: Key, program_id: str = "", ticket: int = 0) -> None:
        """Let a name stand for nothing, unless this command did it before. Who has imported the name notices nothing.

        Raises:
            UnknownName: it stands for nothing.
        """
        before = self.done(program_id, key)
        if before is not None and ticket <= before.ticket:
            return
        if self.find(key) is None:
            raise UnknownName(name=key.name)
        self._drop(key)
        if program_id:
            self.remember(program_id, key, Done(ticket, 0))

    def done(self, program_id: str, key: Key) -> Done | None:
        """Return a program's last command on a name; None if none is known."""
        of = self._done.get(program_id)
        return None if of is None else of.get(key)

    def all_done(self) -> Iterator[tuple[str, Key]]:
        """Yield each program with each name of which the program's last command is remembered."""
        for program_id, of in self._done.items():
            for key in of:
                yield program_id, key

    def remember(self, program_id: str, key: Key, done: Done) -> None:
        """Take note of a program's last command on a name."""
        of = self._done.setdefault(program_id, OrderedDict())
        self._done.move_to_end(program_id)
        of[key] = done
        of.move_to_end(key)
        self.on_done(program_id, key)
        if len(of) > MOST_DONE:
            self.on_done(program_id, of.popitem(last=False)[0])
        if len(self._done) > MOST_DOERS:
            self.ended(next(iter(self._done)))

    def ended(self, program_id: str) -> None:
        """Forget the commands of a program that tells none again."""
        for key in self._done.pop(program_id, ()):
            self.on_done(program_id, key)

    def leave(self, program_id: str) -> None:
        """Forget what a program has imported, because it has ended."""
        for version in self._imported.pop(program_id, {}).values():
            version.importers.discard(program_id)

    def expire(self, now_s: float) -> None:
        """Drop the versions that were unused for their time."""
        late = [k for k, v in self if v.ttl_s and now_s - v.used_s >= v.ttl_s and not v.importers]
        for key in late:
            self._drop(key)

    def _versions(self, tenant: str) -> OrderedDict[Key, Version]:
        return self._of_tenant.get(tenant) or OrderedDict()

    def _make_room(self, key: Key, tokens: int, new: int) -> None:
        versions = self._versions(key.tenant)
        held, limit = self._tokens.get(key.tenant, 0), self._tenant_tokens
        over, names = held + tokens - limit, len(versions) + new - MAX_NAMES
        gone = []
        for other, version in versions.items():
            if over <= 0 and names <= 0:
                break
            if other != key and not version.importers:
                gone.append(other)
                over -= len(version.tokens)
                names -= 1
        if over > 0:
            raise NameBudgetExceeded(held=held, asked=tokens, limit=limit, kind="tokens")
        if names > 0:
            raise NameBudgetExceeded(held=len(versions), asked=1, limit=MAX_NAMES, kind="names")
        for other in gone:
            self._drop(other)

    def _drop(self, key: Key, *, told: bool = True) -> None:
        versions = self._of_tenant[key.tenant]
        version = versions.pop(key)
        self._tokens[key.tenant] -= len(version.tokens)
        if not versions:
            del self._of_tenant[key.tenant], self._tokens[key.tenant]
        if version.rows:
            last = version.rows[-1]
            self._pins[last] -= 1
            if not self._pins[last]:
                del self._pins[last]
        if told:
            self.on_change(key, None)

    def _use(self, key: Key, version: Version, now_s: float) -> None:
        version.used_s = now_s
        self._of_tenant[key.tenant].move_to_end(key)
        self.on_change(key, version)


def checked(name: str) -> str:
    """Return a name that is within bounds.

    Raises:
        InvalidArgument: it is empty, too long or holds control characters.
    """
    size = len(name.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidArgument(argument="name", detail=f"{size} bytes; 1 to {MAX_NAME_BYTES} are allowed")
    if min(name) < _FIRST_PRINTABLE:
        raise InvalidArgument(argument="name", detail="it holds a control character")
    return name


def _nothing(*_: object) -> None:
    return
