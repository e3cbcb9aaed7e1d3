"""Executes the calls on names for programs, each for its own tenant."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from tartlet_common.abi import Op
from tartlet_common.capabilities import check_shared
from tartlet_common.errors.registry import InvalidArgument, NotPlain, UnknownResource
from tartlet_control.calls.names import Export, NameCall
from tartlet_control.rebuild.logs import settle
from tartlet_control.sharing.names import MAX_TOKENS, Key, Names, Version, checked
from tartlet_control.sharing.reuse import offer, root, rows_of
from tartlet_control.tables.lineage import chain
from tartlet_control.tables.programs import Place
from tartlet_control.tables.shared.store import teller

Told = tuple[int, int, bytes]
"""The numbers `a` and `b` of an answer, and its payload."""
_NS: Final = 1e9


class NameOps:
    """Exports, imports and forgets names."""

    def __init__(self, names: Names, unix_ns: Callable[[], int], ttl_s: float) -> None:
        """`unix_ns` tells the time; `ttl_s`: how long a name may be unused, if its export doesn't say; 0: for ever."""
        self._names = names
        self._unix_ns = unix_ns
        self._ttl_s = ttl_s

    def run(self, place: Place, command: NameCall) -> Told:
        """Execute a call, whose queue has settled if it is an export.

        Raises:
            InvalidArgument, UnknownResource: the name or the table is none, or the table has fewer tokens.
            NotPlain: tokens alone don't tell what the table holds.
            UnknownName: an import, or the name to forget, is unknown.
            NameBudgetExceeded: the tenant's names hold as many tokens as they may.
            NotAllowed: the program may not use the name.
        """
        check_shared(place.program.grants, "names", command.name)
        key = Key(place.program.tenant, place.model.spec.model_digest, checked(command.name))
        if type(command) is Export:
            return self._export(place, command, key)
        if command.op == Op.IMPORT_KVPAGE:
            version = self._names.take(key, place.program.id, self.now_s)
            place.program.imports[key] = version.rows
            return len(version.tokens), version.number, version.digest + version.tokens.tobytes()
        self._names.drop(key, _who(place), command.ticket)
        return 0, 0, b""

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        return self._unix_ns() / _NS

    def listed(self, place: Place) -> bytes:
        """Return what a program's tenant has exported for a model, as JSON."""
        names = self._names.listed(place.program.tenant, place.model.spec.model_digest)
        listed = [
            {"name": k.name, "tokens": len(v.tokens), "version": v.number, "digest": v.digest.hex()} for k, v in names
        ]
        return json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()

    def _export(self, place: Place, command: Export, key: Key) -> Told:
        tokens = [*self._tokens(place, command), *command.tail]
        line = place.book.tables.get(command.table) if command.count != 0 else None
        if not 1 <= len(tokens) <= MAX_TOKENS:
            raise InvalidArgument(argument="tokens", detail=f"{len(tokens)} tokens, allowed are 1 to {MAX_TOKENS}")
        adapter = 0 if line is None else line.adapter
        before, values = root(place, adapter), array("I", tokens)
        made = Version(
            number=1,
            tokens=values,
            digest=blake2b(values.tobytes(), digest_size=len(before), key=before).digest(),
            rows=chain(before, rows_of(tokens, place.model.spec.page_size)),
            program_id=_who(place),
            ticket=command.ticket,
            ttl_s=command.ttl_s or self._ttl_s,
            used_s=self.now_s,
            page_size=place.model.spec.page_size,
            adapter=place.model.adapter_digest(adapter),
        )
        version = self._names.export(key, made)
        return len(version.tokens), version.number, version.digest

    @staticmethod
    def _tokens(place: Place, command: Export) -> list[int]:
        """Return the tokens that a table holds, and leave its rows to later programs."""
        if command.count == 0:
            return []
        settle(place)
        line, table = place.book.tables.get(command.table), place.tables.get(command.table)
        if line is None or table is None:
            raise UnknownResource(kind="table", id=command.table)
        if table.queue_id != command.queue.id:
            raise InvalidArgument(argument="table", detail=f"{command.table} belongs to queue {table.queue_id}")
        if not line.is_plain:
            raise NotPlain(call=line.why or "forward_table")
        count = line.length if command.count is None else command.count
        if count > line.length:
            raise InvalidArgument(argument="tokens", detail=f"{count} are more than the {line.length} of the table")
        offer(place, command.table)
        return line.tokens(0, count, place.model.spec.page_size)


def _who(place: Place) -> str:
    """Return what names the program's run: tickets begin anew with each run."""
    return teller(place.program.id, place.program.run)
