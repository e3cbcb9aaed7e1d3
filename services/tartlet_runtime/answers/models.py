"""The models that control announces, and their tokenizers, fetched by digest and kept in memory and on disk."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tartlet_common.engine.pools import EVERYONES_HOME, OWN, Home, Reach
from tartlet_common.engine.spec import EngineSpec, adapters_of
from tartlet_common.errors.registry import NoEngine, TartletError, Unavailable, UnknownModel, UnsupportedTrait
from tartlet_protos import control_pb2
from tartlet_runtime.answers.blob_files import store
from tartlet_runtime.answers.isolated import IsolatedTokenizer
from tartlet_runtime.answers.tame import is_tame
from tartlet_runtime.answers.tokens import TokenizerEntry
from tartlet_runtime.answers.trial import Trials
from tartlet_runtime.budget.ledger import Ledger, Use

log = logging.getLogger(__name__)

AnyTokenizer: TypeAlias = TokenizerEntry | IsolatedTokenizer
_REACHES_KEPT = 1024
_UNNAMED_KEPT = 8
"""Tokenizers that stay loaded although no model names them any more: an engine may come back."""
_LOADED_BYTES = 8
"""Bytes of memory that a loaded tokenizer takes for each byte of its file."""
Fetch = Callable[[str], Awaitable[bytes]]
"""Gets a blob by its digest (sha-256, hex) from control."""
Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Starts a task whose errors nobody loses (a TaskGroup's `create_task`)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that programs may use."""

    index: int
    name: str
    spec: EngineSpec
    ready: bool
    owner: str | None = None  # the tenant whose pools serve it; None: everyone's engines do
    pools: tuple[tuple[Home, bool], ...] = ()  # the pools with engines, and whether each has a ready one
    durabilities: tuple[tuple[Home, str], ...] = ()  # of launches that say nothing, for the pools that have one

    def rank(self, reach: Reach) -> int | None:
        """Return how near the model is to a program, as control does; None: the program doesn't see it."""
        ranks = [rank for home, _ in self.pools if (rank := reach.rank(home)) is not None]
        if ranks:
            return min(ranks)
        return None if self.pools else reach.rank(Home(self.owner))

    def ready_for(self, reach: Reach) -> bool:
        """Whether an engine that the program may use takes new programs."""
        return any(ready and reach.rank(home) is not None for home, ready in self.pools)

    def durability(self, reach: Reach) -> str:
        """Return the durability of the nearest pool that has one, of those that a program may use; "": none has."""
        modes = [(rank, home.pool, mode) for home, mode in self.durabilities if (rank := reach.rank(home)) is not None]
        return min(modes)[2] if modes else ""

    def info_json(self) -> bytes:
        """Return the answer to GET_MODEL."""
        spec = self.spec
        return json.dumps(
            {
                "index": self.index,
                "name": self.name,
                "page_size": spec.page_size,
                "vocab_size": spec.vocab_size,
                "max_position": spec.max_position,
                "stop_tokens": list(spec.stop_tokens),
                "bos_token": spec.bos_token,
                "traits": list(spec.traits),
                "chat_template": bool(spec.chat_template),
                "top_k_limit": spec.top_k_limit,
                "logprobs_limit": spec.logprobs_limit,
                "max_batch_tokens": spec.max_batch_tokens,
                "batch_invariant": spec.batch_invariant,
                "description": spec.description,
                "version": spec.version,
                "license": spec.license,
            },
            separators=(",", ":"),
        ).encode()


def model_from_proto(info: control_pb2.ModelInfo) -> ServedModel:
    """Decode what control says of a model; fields of a newer release are ignored."""
    fields = json.loads(info.spec_json)
    known = {name: value for name, value in fields.items() if name in EngineSpec.__dataclass_fields__}
    for name in ("stop_tokens", "traits"):
        if name in known:
            known[name] = tuple(known[name])
    known["adapters"] = adapters_of(known.get("adapters", ()))
    if info.tokenizer_digest:
        known["tokenizer_digest"] = info.tokenizer_digest
    owner = info.owner if info.owned else None
    pools = tuple((Home(owner, pool.name, pool.shared), pool.ready) for pool in info.pools)
    if not info.owned and not pools:  # a control of the last release names no pools
        pools = ((EVERYONES_HOME, info.ready),)
    durabilities = tuple((Home(owner, p.name, p.shared), p.durability) for p in info.pools if p.durability)
    return ServedModel(info.index, info.name, EngineSpec(**known), info.ready, owner, pools, durabilities)


class ModelTable:
    """Models by index and name, tokenizers by digest."""

    def __init__(self, blob_dir: Path, fetch: Fetch, spawn: Spawn, ledger: Ledger, *, has_tenants: bool = True) -> None:
        """Make an empty table.

        Args:
            blob_dir: keeps tokenizers over restarts.
            fetch: gets a tokenizer from control.
            spawn: owns the tasks that load tokenizers.
            ledger: the memory that tokenizers take a part of.
            has_tenants: engines may be others', so that a tokenizer is tried before the runtime loads it, and works in
                a process of its own unless it is tame.
        """
        self._blob_dir = blob_dir
        self._ledger = ledger
        self._trials = Trials(blob_dir, ledger) if has_tenants else None
        self._fetch = fetch
        self._spawn = spawn
        self._announced: list[control_pb2.ModelInfo] = []
        self._by_index: dict[int, ServedModel] = {}  # as control orders them: of one name's forms, the one to use first
        self.known = asyncio.Event()
        """The event is set while control knows a model, and so not before the first engine has joined."""
        self._seen: dict[Reach, list[ServedModel]] = {}  # what programs of a reach see, since the last change
        self._info: dict[int, bytes] = {}
        self._tokenizers: dict[str, AnyTokenizer] = {}
        self._held: dict[str, int] = {}  # bytes that these take of the ledger
        self._loading: dict[str, asyncio.Future[AnyTokenizer]] = {}

    def update(self, infos: Iterable[control_pb2.ModelInfo]) -> None:
        """Take over the whole list from control, and start to fetch tokenizers it names."""
        models: dict[int, ServedModel] = {}
        self._announced = list(infos)
        for info in self._announced:
            try:
                models[info.index] = model_from_proto(info)
            except (ValueError, TypeError) as e:
                log.warning("control announced model %r with a spec that can't be read: %s", info.name, e)
        self._by_index = models
        (self.known.set if models else self.known.clear)()
        self._info, self._seen = {}, {}
        for model in models.values():
            digest = model.spec.tokenizer_digest
            if digest and digest not in self._tokenizers and digest not in self._loading:
                self._start_loading(digest)
        named = {model.spec.tokenizer_digest for model in models.values()}
        self._drop([digest for digest in self._tokenizers if digest not in named][:-_UNNAMED_KEPT])

    def close(self) -> None:
        """End the processes of tokenizers."""
        self._drop(list(self._tokenizers))

    def announced(self) -> list[control_pb2.ModelInfo]:
        """Return control's last list."""
        return self._announced

    def seen_by(self, reach: Reach) -> list[ServedModel]:
        """Return the models that a program sees, the default one first, in control's order (`Models.seen_by`)."""
        seen = self._seen.get(reach)
        if seen is None:
            ranked = [(m, rank) for m in self._by_index.values() if (rank := m.rank(reach)) is not None]
            seen = [m for m, _ in sorted(ranked, key=lambda each: (not each[0].ready_for(reach), each[1]))]
            if len(self._seen) >= _REACHES_KEPT:
                self._seen.clear()
            self._seen[reach] = seen
        return seen

    def told(self, tenant: str | None) -> str:
        """Return the models that a tenant's programs see (None: all), the default one first, as JSON.

        Each has `name`, `ready`, `max_position` in tokens and the names of its `adapters`, as in control's state.
        """
        reach = None if tenant is None else Reach(tenant)
        models = [
            {
                "name": model.name,
                "ready": model.ready if reach is None else model.ready_for(reach),
                "max_position": model.spec.max_position,
                "adapters": [adapter.name for adapter in model.spec.adapters],
            }
            for model in (self._by_index.values() if reach is None else self.seen_by(reach))
        ]
        return json.dumps({"models": models})

    def names(self, reach: Reach) -> list[str]:
        """Names of all models that a program sees, the default one first."""
        return list(dict.fromkeys(model.name for model in self.seen_by(reach)))

    def names_with(self, traits: Collection[str], reach: Reach) -> list[str]:
        """Names of all models that a program sees and whose engines have all these traits, the default one first."""
        seen = self.seen_by(reach)
        return list(dict.fromkeys(model.name for model in seen if set(traits) <= set(model.spec.traits)))

    def default_name(self, reach: Reach) -> str:
        """Name of the model that a program without one gets, "" if there is none."""
        return next((model.name for model in self.seen_by(reach)), "")

    def known_name(self, name: str, reach: Reach) -> str:
        """The name if the program sees such a model, else ""."""
        return name if any(model.name == name for model in self.seen_by(reach)) else ""

    def find(self, name: str, reach: Reach) -> ServedModel:
        """The model of that name, or the default one for "", as control chooses it for this program.

        Raises:
            NoEngine: the program sees no model at all.
            UnknownModel: it sees none of that name.
        """
        seen = self.seen_by(reach)
        if not seen:
            raise NoEngine
        if not name:
            return seen[0]
        called = [model for model in seen if model.name == name]
        if not called:
            raise UnknownModel(model=name, available=self.names(reach))
        own = next((model for model in called if model.rank(reach) == OWN), None)
        if own is not None and own.spec.model_digest != called[0].spec.model_digest and not own.ready_for(reach):
            return own
        return called[0]

    def durability(self, name: str, reach: Reach, default: str) -> str:
        """Return the durability of a launch that says nothing: of a pool that serves its model, or else the default.

        Args:
            name: the launch's model; "": the default one.
            reach: the launch's.
            default: of launches whose model is unknown, or whose pools have no durability.
        """
        try:
            return self.find(name, reach).durability(reach) or default
        except (NoEngine, UnknownModel):
            return default

    def by_index(self, index: int, reach: Reach) -> ServedModel:
        """The model that a program calls `index`.

        Raises:
            UnknownModel: the program sees none.
        """
        model = self._by_index.get(index)
        if model is None or model.rank(reach) is None:
            raise UnknownModel(model=f"#{index}", available=self.names(reach))
        return model

    def info(self, name: str, reach: Reach) -> bytes:
        """GET_MODEL's answer (kept, because a model list changes rarely)."""
        model = self.find(name, reach)
        answer = self._info.get(model.index)
        if answer is None:
            answer = self._info[model.index] = model.info_json()
        return answer

    def tokenizer(self, index: int, reach: Reach) -> AnyTokenizer | asyncio.Future[AnyTokenizer]:
        """The tokenizer of a model, or a future that has it, or fails with a TartletError.

        Raises:
            UnknownModel: the program sees no such model.
            UnsupportedTrait: it has no tokenizer.
        """
        model = self.by_index(index, reach)
        digest = model.spec.tokenizer_digest
        if not digest:
            raise UnsupportedTrait(model=model.name, trait="Tokenize")
        entry = self._tokenizers.get(digest)
        if entry is not None:
            return entry
        if digest not in self._loading:
            self._start_loading(digest)
        return self._loading[digest]

    def _start_loading(self, digest: str) -> None:
        self._loading[digest] = asyncio.get_running_loop().create_future()
        self._spawn(self._load(digest))

    async def _load(self, digest: str) -> None:
        waiting = self._loading[digest]
        try:
            data = await self._blob(digest)
            if self._trials is not None:
                await self._trials.check(digest, data)
            entry = await self._entry(digest, data)
        except TartletError as e:
            log.warning("tokenizer %s: %s", digest[:12], e)
            _fail(waiting, e)
            return
        except BaseException as e:  # a bug, or cancelled: whoever waits is told all the same
            _fail(waiting, Unavailable(what=f"tokenizer {digest[:12]}", detail=repr(e)))
            raise
        finally:
            del self._loading[digest]
        self._tokenizers[digest] = entry
        if not waiting.cancelled():
            waiting.set_result(entry)

    async def _entry(self, digest: str, data: bytes) -> AnyTokenizer:
        if self._trials is not None and not await asyncio.to_thread(lambda: is_tame(json.loads(data))):
            log.info("tokenizer %s works in a process of its own", digest[:12])
            return IsolatedTokenizer(data, self._ledger)
        self._ledger.take(Use.TOKENIZERS, _LOADED_BYTES * len(data))
        self._held[digest] = _LOADED_BYTES * len(data)
        try:
            return await asyncio.to_thread(TokenizerEntry, data)
        except BaseException:
            self._ledger.give(Use.TOKENIZERS, self._held.pop(digest))
            raise

    def _drop(self, digests: Iterable[str]) -> None:
        for digest in digests:
            entry = self._tokenizers.pop(digest)
            self._ledger.give(Use.TOKENIZERS, self._held.pop(digest, 0))
            if isinstance(entry, IsolatedTokenizer):
                entry.close()

    async def _blob(self, digest: str) -> bytes:
        path = self._blob_dir / digest
        if _is_digest(digest) and path.is_file():
            data = await asyncio.to_thread(path.read_bytes)
            if hashlib.sha256(data).hexdigest() == digest:
                return data
        data = await self._fetch(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            raise Unavailable(what=f"blob {digest[:12]}", detail="its bytes don't match its digest")
        await asyncio.to_thread(store, path, data)
        return data


def _fail(waiting: asyncio.Future[AnyTokenizer], error: TartletError) -> None:
    if not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # it may be that nobody waits


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(c in "0123456789abcdef" for c in text)
