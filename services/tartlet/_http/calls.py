"""The client over HTTP(S), behind a gateway: the calls of `AsyncClient` with a key, and the same typed errors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import quote

import httpx

from tartlet import environment
from tartlet._calls import launch_spec, repeated
from tartlet._given import all_of, check_id, check_offset, check_texts, check_turns, message_bytes, seed_bytes
from tartlet._http.events import HttpFollowing, error_of, sends_key, tied_to
from tartlet._run import Run
from tartlet.events import Accepted, Event, Usage
from tartlet.model import (
    CatalogueEntry,
    Language,
    LaunchSpec,
    Limits,
    ProgramInfo,
    RuntimeState,
    Source,
    check_name,
    check_source,
)
from tartlet_common.bundles.layout import is_bundle
from tartlet_common.errors.registry import Disconnected, InvalidArgument, TartletError, Unavailable
from tartlet_common.pauses import Pause
from tartlet_common.rpc.endpoints import Tls

Answers = list[Accepted | TartletError]  # named here: in the class, `list` is a method
Infos = list[ProgramInfo]
Errors = list[TartletError | None]
Entries = list[CatalogueEntry]
Digests = list[str]
_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0)
_NO_LIMITS: Final = Limits()
_NO_JOURNALS: Final = "journals don't travel through a gateway: use a client over gRPC"


class HttpCalls:
    """The calls of `AsyncClient` for an address `http://HOST:PORT` or `https://HOST:PORT`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        control: str | None = None,
        tls: Tls | None = None,
        tenant: str | None = None,
        key: str | None = None,
        retry_s: float = 30.0,
    ) -> None:
        for name, given in (("control", control), ("tls", tls), ("tenant", tenant)):
            if given is not None:
                detail = f"over HTTP the gateway knows it, by the key: leave {name} out"
                raise InvalidArgument(argument=name, detail=detail)
        self.address = (address or "").rstrip("/").removesuffix("/v1")
        self._retry_s = retry_s
        key = key or environment.key()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(base_url=f"{self.address}/v1/", headers=headers, timeout=_TIMEOUT)

    async def close(self) -> None:
        """Close the connections; programs started with `run` end."""
        await self._http.aclose()

    # ---- programs -----------------------------------------------------------------------------------------------

    async def run(
        self, source: Source | None = None, args: Sequence[str] = (), *, spec: LaunchSpec | None = None
    ) -> Run:
        """See `AsyncClient.run`. The program ends if the connection breaks."""
        body = _launch(launch_spec(source, args, spec)) | {"stream": True, "tied": True}
        program_id, following = await tied_to(self._http, body)
        return Run(program_id, "", following)

    async def launch_many(self, specs: Sequence[LaunchSpec]) -> Answers:
        """See `AsyncClient.launch_many`. Each launch is a request of its own."""
        answers: Answers = []
        for spec in all_of(LaunchSpec, "specs", specs):
            try:
                answers.append(await self._launched(_launch(spec), self._retry_s if spec.idempotency_key else 0.0))
            except Unavailable:
                raise
            except TartletError as e:
                answers.append(e)
        return answers

    async def _launched(self, body: dict[str, Any], retry_s: float) -> Accepted:
        reply = await repeated(lambda: self._ask("POST", "programs", json=body), retry_s)
        return Accepted(reply["id"])

    async def run_many(self, specs: Sequence[LaunchSpec]) -> AsyncIterator[tuple[int, Event | TartletError]]:
        """See `AsyncClient.run_many`."""
        waiting: asyncio.Queue[tuple[int, Event | TartletError | None]] = asyncio.Queue(64)

        async def follow(index: int, spec: LaunchSpec) -> None:
            try:
                run = await self.run(spec=spec)
                await waiting.put((index, Accepted(run.program_id)))
                async for event in run:
                    await waiting.put((index, event))
            except TartletError as e:
                await waiting.put((index, e))
            await waiting.put((index, None))

        specs = all_of(LaunchSpec, "specs", specs)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow(index, spec)) for index, spec in enumerate(specs)]
            left = len(tasks)
            try:
                while left:
                    index, event = await waiting.get()
                    if event is None:
                        left -= 1
                    else:
                        yield index, event
            finally:
                for task in tasks:
                    task.cancel()

    async def attach(self, program_id: str, offset: int = 0, *, retry_s: float | None = None) -> Run:
        """See `AsyncClient.attach`."""
        check_id(program_id)
        check_offset(offset)
        patience_s = self._retry_s if retry_s is None else retry_s
        return Run(program_id, "", HttpFollowing(self._http, _path(program_id), offset, patience_s))

    async def send_many(self, items: Sequence[tuple[str, bytes | str]]) -> Errors:
        """See `AsyncClient.send_many`. A message is sent again only if it can't have arrived before."""
        errors: Errors = []
        encoded = [(program_id, message_bytes(message)) for program_id, message in items]
        for program_id, data in encoded:
            check_id(program_id)
            try:
                await self._ask("POST", f"{_path(program_id)}/messages", json={"data": _text(data)})
            except (Unavailable, Disconnected):
                raise
            except TartletError as e:
                errors.append(e)
            else:
                errors.append(None)
        return errors

    async def kill(self, program_id: str, reason: str = "") -> None:
        """See `AsyncClient.kill`."""
        check_id(program_id)
        check_texts(reason=reason)
        await self._ask("DELETE", _path(program_id), params={"reason": reason})

    async def list(self, *, ended: bool = False, tenant: str = "") -> Infos:
        """See `AsyncClient.list`."""
        reply = await self._ask("GET", "programs", params={"ended": "true"} if ended else {})
        return [_info(told) for told in reply["data"] if not tenant or told["tenant"] == tenant]

    async def validate(self, source: Source) -> str:
        """See `AsyncClient.validate`."""
        check_source(source)
        return str((await self._ask("POST", "programs/validate", json=_source(source)))["digest"])

    async def state(self) -> RuntimeState:
        """Refuse: the state of runtimes and engines is no tenant's.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(argument="address", detail="a gateway doesn't tell the state of runtimes and engines")

    async def export_journal(self, program_id: str) -> bytes:
        """Refuse: journals don't travel through a gateway.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(argument="address", detail=_NO_JOURNALS)

    async def read_journal(
        self, program_id: str, first: int = 1, *, count: int = 50, texts: bool = False
    ) -> dict[str, Any]:
        """See `AsyncClient.read_journal`."""
        check_id(program_id)
        check_turns(first, count)
        asked = {"first": first, "count": count, **({"texts": "true"} if texts else {})}
        page: dict[str, Any] = await self._ask("GET", f"{_path(program_id)}/journal", params=asked)
        return page

    async def import_journal(self, journal: bytes) -> str:
        """Refuse: journals don't travel through a gateway.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(argument="address", detail=_NO_JOURNALS)

    # ---- catalogue ----------------------------------------------------------------------------------------------

    async def put(self, entries: Sequence[CatalogueEntry]) -> Digests:
        """See `AsyncClient.put`. Sources are checked."""
        entries = all_of(CatalogueEntry, "entries", entries)
        for entry in entries:
            check_name(entry.name)
        digests = []
        for entry in entries:
            body = _source(entry.source) | {"description": entry.description} | _where(entry)
            digests.append(str((await self._ask("PUT", f"inferlets/{quote(entry.name)}", json=body))["digest"]))
        return digests

    async def get(self, name: str, *, tenant: str = "", digest: str = "") -> CatalogueEntry:
        """See `AsyncClient.get`; an entry is found by its name alone."""
        check_texts(name=name)
        for argument, given in (("tenant", tenant), ("digest", digest)):
            if given:
                raise InvalidArgument(argument=argument, detail="over HTTP an entry is found by its name alone")
        return _entry(await self._ask("GET", f"inferlets/{quote(name)}"))

    async def delete(self, name: str, *, tenant: str = "") -> None:
        """See `AsyncClient.delete`."""
        check_texts(name=name, tenant=tenant)
        await self._ask("DELETE", f"inferlets/{quote(name)}")

    async def catalogue(self, *, tenant: str = "") -> Entries:
        """See `AsyncClient.catalogue`."""
        reply = await self._ask("GET", "inferlets")
        return [_entry(told) for told in reply["data"] if not tenant or told["tenant"] == tenant]

    async def end_session(self, session: str, *, tenant: str = "") -> None:
        """See `AsyncClient.end_session`."""
        check_texts(session=session, tenant=tenant)
        await self._ask("DELETE", f"sessions/{quote(session, safe='')}")

    async def _ask(self, method: str, path: str, **more: Any) -> Any:
        """Send a request and return the reply's JSON.

        Raises:
            TartletError: the gateway refused, or didn't answer.
        """
        try:
            reply = await self._http.request(method, path, **more)
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise Unavailable(what=f"the gateway at {self.address}", detail=str(e) or type(e).__name__) from e
        if reply.is_error:
            raise error_of(reply.status_code, reply.content, has_key=sends_key(self._http))
        return reply.json()


def _path(program_id: str) -> str:
    return f"programs/{quote(program_id, safe='')}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _source(source: Source) -> dict[str, Any]:
    if source.language is Language.NATIVE:
        raise InvalidArgument(argument="source", detail="native programs are launched on the runtime's machine only")
    if source.language is Language.WASM:
        return {"wasm": _text(source.data), "filename": source.filename}
    if is_bundle(source.data):
        return {"bundle": _text(source.data), "filename": source.filename}
    try:
        return {"source": source.data.decode(), "filename": source.filename}
    except UnicodeDecodeError as e:
        raise InvalidArgument(argument="source", detail=f"a Python program is text in UTF-8: {e}") from e


def _where(given: LaunchSpec | CatalogueEntry) -> dict[str, Any]:
    limits = {} if given.limits == _NO_LIMITS else {"limits": asdict(given.limits)}
    return {"model": given.model, "pool": given.pool, "durability": given.durability, **limits}


def _launch(spec: LaunchSpec) -> dict[str, Any]:
    if spec.tenant:
        raise InvalidArgument(argument="tenant", detail="over HTTP the key names the tenant: leave it out")
    if spec.fork is not None:
        raise InvalidArgument(argument="fork", detail="a gateway makes no forks: use a client over gRPC")
    if spec.capabilities is not None:
        raise InvalidArgument(argument="capabilities", detail="over HTTP they are the inferlet's: leave them out")
    body = _where(spec) | {
        "args": [*spec.args],
        "idempotency_key": spec.idempotency_key,
        "session": spec.session,
        "parent_session": spec.parent_session,
        "ends_session": spec.ends_session,
    }
    if not spec.durable:
        body["durability"] = "off"
    if spec.seed is not None:
        body["seed"] = int.from_bytes(seed_bytes(spec.seed), "little")
    return body | (_source(spec.source) if spec.source is not None else {"inferlet": spec.inferlet})


def _info(told: dict[str, Any]) -> ProgramInfo:
    return ProgramInfo(
        program_id=told["id"],
        name=told["name"],
        state=told["state"],
        tenant=told["tenant"],
        started_unix_s=told["started"],
        age_s=told["age_s"],
        usage=Usage(**told["usage"]),
        error=None if told["error"] is None else error_of(0, json.dumps({"error": told["error"]}).encode()),
        model=told["model"],
        pages=told["pages"],
        idempotency_key=told["idempotency_key"],
        recovered_s=told["recovered_s"],
        parent=told.get("parent", ""),
        pauses=tuple(Pause(**pause) for pause in told.get("pauses", ())),
    )


def _entry(told: dict[str, Any]) -> CatalogueEntry:
    coded = told.get("wasm") or told.get("bundle")
    data = base64.b64decode(coded) if coded else told.get("source", "").encode()
    return CatalogueEntry(
        name=told["name"],
        source=Source(data, Language(told["language"]), told["filename"]),
        tenant=told["tenant"],
        limits=Limits(**told["limits"]),
        model=told["model"],
        description=told["description"],
        pool=told["pool"],
        durability=told["durability"],
    )
