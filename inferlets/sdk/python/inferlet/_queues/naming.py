"""Naming what a page table holds, for other programs: export, import and unexport (Table 1 of the paper).

A call that is awaited and fails doesn't poison its queue: a program may try a name and go on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from inferlet._generated import abi, packers
from inferlet._queues.computing import Computing
from inferlet._values import refusals
from inferlet._values.arguments import shown, token_list, whole
from inferlet._values.types import Adapter, Exported, Imported, Model, PageTable
from inferlet._wire import answers
from inferlet._wire.channel import Names, channel

MAX_NAME_BYTES = 256
CHUNK = 512
"""Tokens of one `forward_table` with which an import fills its table."""


class Naming(Computing):
    """The part of a queue that exports and imports."""

    __slots__ = ("prefix_cache",)

    def __init__(self, queue_id: int, model: Model | None) -> None:
        super().__init__(queue_id, model)
        self.prefix_cache = True

    def export_kvpage(
        self,
        kv: PageTable | None,
        name: str,
        *,
        num_tokens: int | None = None,
        tail: Sequence[int] = (),
        ttl_s: int = 0,
    ) -> asyncio.Future[Exported]:
        """Name what a page table holds, for all programs of the tenant that use the same model.

        A name stands for an immutable version. It outlives its program, until it was unused for `ttl_s` or the tenant's
        budget asks for its place. Exporting other tokens under the name makes the next version. Later commands of this
        queue wait until those before the call have been computed.

        Page lists can't be exported: nothing tells which tokens pages hold that a program addresses itself.

        Args:
            kv: the table, whose tokens were each computed at their own position, without masks; None for no table.
            name: 1 to 256 bytes of UTF-8, without control characters.
            num_tokens: how many of its tokens; None for all.
            tail: tokens that follow, which a program that imports the name computes.
            ttl_s: seconds without use after which the name ends; 0 for the time of the deployment.

        Raises:
            InvalidArgument: an argument is none. Awaited: the table has fewer tokens.
            NotPlain: awaited, tokens alone don't tell what the table holds.
            NameBudgetExceeded: awaited, the tenant's names hold as many tokens as they may.

        Example:
            >>> async def main():
            ...     prompt = await tokenize("Long instructions.")
            ...     made, embeds = table(new_rows=len(prompt) // get_kv_page_size() + 1), alloc_emb(len(prompt))
            ...     embed_txt(prompt, range(len(prompt)), embeds)
            ...     forward_table(made, 0, embeds)
            ...     exported = await export_kvpage(made, "instructions")
            ...     print(exported.tokens == len(prompt), exported.version)
            True 1
        """
        if kv is not None and (type(kv) in refusals.OTHERS[PageTable] or not isinstance(kv, int)):
            [kv] = refusals.handles("export_kvpage", "kv", PageTable, kv)
        data = named("export_kvpage", name)
        if num_tokens is not None:
            whole("num_tokens", num_tokens, 0)
        whole("ttl_s", ttl_s, 0)
        count = 0 if kv is None else abi.WHOLE_TABLE if num_tokens is None else num_tokens
        following = token_list("export_kvpage", tail)

        def decode(a: int, b: int, _c: int, payload: bytes) -> Exported:
            return Exported(name, a, b, payload.hex())

        fields = packers.export_kvpage(self.id, kv or 0, count, ttl_s, data, following)
        return self._named(decode, fields, ("export_kvpage", "kv", "num_tokens"))

    def import_tokens(self, name: str) -> asyncio.Future[Imported]:
        """Ask which tokens a name stands for. Tables that are filled with them take over the rows that engines have.

        Raises:
            InvalidArgument: `name` is none.
            UnknownName: awaited, nothing is exported under the name.

        Example:
            >>> async def main():
            ...     await export_kvpage(None, "greeting", tail=[72, 105])
            ...     print((await import_tokens("greeting")).tokens)
            [72, 105]
        """

        def decode(_a: int, b: int, _c: int, payload: bytes) -> Imported:
            return Imported(name, answers.tokens(0, 0, 0, payload[16:]), b, payload[:16].hex())

        return self._named(decode, packers.import_kvpage(self.id, named("import_kvpage", name)))

    async def import_kvpage(self, name: str, *, adapter: Adapter | None = None) -> Imported:
        """Make a page table of this queue that holds what a name stands for, computed under a LoRA adapter or none.

        The table shares the rows that its engine has of the name. What is missing, because the engine was lost or its
        memory was short, is computed. The program can't tell one from the other.

        Raises:
            InvalidArgument: `name` is none.
            UnknownName: nothing is exported under the name.

        Example:
            >>> async def main():
            ...     await export_kvpage(None, "greeting", tail=await tokenize("Hi"))
            ...     imported = await import_kvpage("greeting")
            ...     print(await detokenize(imported.tokens), imported.table)
            Hi PageTable(0)
        """
        found = await self.import_tokens(name)
        tokens, model = found.tokens, self.model
        made = self.table(new_rows=-(-len(tokens) // model.page_size))
        embeds = self.alloc_emb(min(CHUNK, model.max_batch_tokens, len(tokens)))
        for at in range(0, len(tokens), len(embeds)):
            part = tokens[at : at + len(embeds)]
            into = embeds[: len(part)]
            self.embed_txt(part, range(at, at + len(part)), into)
            self.forward_table(made, at, into, adapter=adapter)
        self.dealloc_emb(embeds)
        return Imported(name, tokens, found.version, found.digest, made)

    def unexport_kvpage(self, name: str) -> asyncio.Future[None]:
        """Let a name stand for nothing. Programs that have imported it notice nothing.

        Raises:
            InvalidArgument: `name` is none.
            UnknownName: awaited, nothing is exported under the name.

        Example:
            >>> async def main():
            ...     await export_kvpage(None, "draft", tail=[72])
            ...     await unexport_kvpage("draft")
            ...     print(await get_all_exported_kvpages())
            []
        """
        return self._named(answers.nothing, packers.unexport_kvpage(self.id, named("unexport_kvpage", name)))

    def get_all_exported_kvpages(self) -> asyncio.Future[list[Exported]]:
        """Ask for all that the tenant has exported for the queue's model, sorted by name.

        Example:
            >>> async def main():
            ...     await export_kvpage(None, "b", tail=[72])
            ...     await export_kvpage(None, "a", tail=[72, 105])
            ...     print([(each.name, each.tokens) for each in await get_all_exported_kvpages()])
            [('a', 2), ('b', 1)]
        """

        def decode(a: int, b: int, c: int, payload: bytes) -> list[Exported]:
            return [Exported(**each) for each in answers.json_value(a, b, c, payload)]

        return self._named(decode, packers.get_all_exported_kvpages(self.id))

    def set_prefix_cache(self, on: bool, *, program: bool = False) -> None:  # noqa: FBT001 - the one thing it says
        """Say whether the queue's tables take over rows of equal prompts, and leave theirs to others. They do at first.

        Imports take over rows in any case.

        Args:
            on: whether they do.
            program: whether this holds for all queues of the program, later ones too.

        Example:
            >>> async def main():
            ...     set_prefix_cache(False)  # for measurements: every token is computed
        """
        channel.record(*packers.set_prefix_cache(self.id, bool(on), program))
        if not program:
            self.prefix_cache = bool(on)

    def _named(self, decode: Any, fields: packers.Fields, names: Names = ()) -> asyncio.Future[Any]:
        self.last_ticket = channel.next_ticket
        return channel.call(decode, *fields, names=names)


def named(call: str, name: str) -> bytes:
    """Return a name as bytes.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(name, str):
        raise refusals.refusal(call, "name", f"it is a str, not {shown(name)}")
    data = refusals.utf8(call, "name", name)
    if not 1 <= len(data) <= MAX_NAME_BYTES:
        raise refusals.refusal(call, "name", f"it has {len(data)} bytes, and 1 to {MAX_NAME_BYTES} are allowed")
    return data
