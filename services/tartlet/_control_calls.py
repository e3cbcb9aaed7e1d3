"""The client's calls to control: the catalogue, and the end of sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import grpc.aio

from tartlet import _convert, environment
from tartlet._calls import checked, translated, upload
from tartlet._given import all_of, check_texts
from tartlet.model import CatalogueEntry, check_name
from tartlet_common.errors.registry import InternalError, InvalidArgument
from tartlet_common.rpc import endpoints, error_proto
from tartlet_common.rpc.paging import pages
from tartlet_protos import control_pb2, control_pb2_grpc

Entries = list[CatalogueEntry]  # named here: in the client, `list` is a method
Digests = list[str]


class ControlCalls:
    """What `AsyncClient` asks control."""

    address: str
    _control_address: str | None
    _tls: endpoints.Tls | None
    _metadata: Any
    _control_dialer: endpoints.Dialer | None

    async def put(self, entries: Sequence[CatalogueEntry]) -> Digests:
        """Put named programs into the catalogue; return their digests. Sources aren't checked: `validate` them before.

        Raises:
            InvalidArgument: a name is malformed; nothing was stored.
            TartletError: the error of the first entry that was refused; other entries may have been stored.
        """
        entries = all_of(CatalogueEntry, "entries", entries)
        for entry in entries:
            check_name(entry.name)
        request = control_pb2.PutRequest(entries=[_convert.entry_to_proto(e) for e in entries])
        with translated(self.control_address):
            for entry in entries:
                await upload(self._catalogue(), entry.source)
        call = self._catalogue().Put(iter([checked(request)]), metadata=self._metadata)
        reply = await self._call(call.read(), self.control_address)
        if not isinstance(reply, control_pb2.PutReply):  # the call's end
            raise InternalError(detail="entries were put, and not answered")
        for message in reply.errors:
            error = error_proto.error_from_proto(message)
            if error is not None:
                raise error
        return [str(d) for d in reply.digests]

    async def get(self, name: str, *, tenant: str = "", digest: str = "") -> CatalogueEntry:
        """Return a program of the catalogue with its source.

        Raises:
            UnknownInferlet: the catalogue has no program of this name.
        """
        check_texts(name=name, tenant=tenant, digest=digest)
        request = control_pb2.GetRequest(tenant=tenant, name=name, digest=digest)
        reply = await self._call(self._catalogue().Get(request, metadata=self._metadata), self.control_address)
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error
        source = reply.entry.source
        if source.digest and not source.data:
            source.data = await self._fetch(source.digest)
        return _convert.entry_from_proto(reply.entry)

    async def delete(self, name: str, *, tenant: str = "") -> None:
        """Remove a program from the catalogue; programs launched from it go on.

        Raises:
            UnknownInferlet: the catalogue has no program of this name.
        """
        check_texts(name=name, tenant=tenant)
        request = control_pb2.DeleteRequest(tenant=tenant, name=name)
        reply = await self._call(self._catalogue().Delete(request, metadata=self._metadata), self.control_address)
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error

    async def catalogue(self, *, tenant: str = "") -> Entries:
        """List the catalogue's programs, without their sources' data."""

        def page(token: str) -> Awaitable[Any]:
            request = control_pb2.CatalogueListRequest(tenant=tenant, page_token=token)
            return self._call(self._catalogue().List(request, metadata=self._metadata), self.control_address)

        return [_convert.entry_from_proto(m) async for reply in pages(page) for m in reply.entries]

    async def end_session(self, session: str, *, tenant: str = "") -> None:
        """End a session once its last run has ended. A session that isn't there has ended already."""
        check_texts(session=session, tenant=tenant)
        with translated(self.control_address):
            stub = control_pb2_grpc.ControlStub(self._control())
            await stub.EndSession(
                control_pb2.EndSessionRequest(tenant=tenant, session=session), metadata=self._metadata
            )

    async def keep(self, key: str, value: bytes, expires_unix_s: float, *, existing: bool = False) -> bool:
        """Store a value of the tenant until a time, at the latest; with `existing` only if the key is there.

        The tenant's programs don't see the value. Returns whether the key was there.

        Raises:
            ResourceQuotaExceeded: the tenant's programs fill its store.
            FrameTooLarge: the value is too long.
        """
        ask = control_pb2.StoreRequest
        request = ask(kind=ask.SET, key=key, value=value, expires_unix_s=expires_unix_s, existing=existing)
        return bool((await self._ask_store(request)).found)

    async def kept(self, key: str) -> bytes | None:
        """Return a value that `keep` has stored; None: there is none any more."""
        reply = await self._ask_store(control_pb2.StoreRequest(kind=control_pb2.StoreRequest.GET, key=key))
        return bytes(reply.value) if reply.found else None

    async def forget(self, key: str) -> bool:
        """Delete a value that `keep` has stored; return whether it was there."""
        request = control_pb2.StoreRequest(kind=control_pb2.StoreRequest.DELETE, key=key)
        return bool((await self._ask_store(request)).found)

    async def _ask_store(self, request: control_pb2.StoreRequest) -> Any:
        stub = control_pb2_grpc.StoreStub(self._control())
        reply = await self._call(stub.Ask(checked(request), metadata=self._metadata), self.control_address)
        error = error_proto.error_from_proto(reply.error)
        if error is not None:
            raise error
        return reply

    @property
    def control_address(self) -> str:
        """Control's address.

        Raises:
            InvalidArgument: the address wasn't given and can't be derived from the runtime's.
        """
        if self._control_address is not None:
            return self._control_address
        path = endpoints.unix_path(self.address)
        if path is None:
            raise InvalidArgument(
                argument="control",
                detail="the catalogue is control's, whose address isn't known over TCP",
                remedy=f"Set {environment.CONTROL}=host:port, or give `control` in Python.",
            )
        return f"unix:{path.parent / 'control.sock'}"

    def _control(self) -> grpc.aio.Channel:
        if self._control_dialer is None:
            self._control_dialer = endpoints.Dialer(self.control_address, self._tls, role="control")
        return self._control_dialer.current()

    def _catalogue(self) -> Any:
        return control_pb2_grpc.CatalogueStub(self._control())

    async def _fetch(self, digest: str) -> bytes:
        """Fetch a source that is too large for one message."""
        with translated(self.control_address):
            stub = control_pb2_grpc.ControlStub(self._control())
            return b"".join([chunk.data async for chunk in stub.FetchBlob(control_pb2.BlobRequest(digest=digest))])

    async def _call(self, call: Awaitable[Any], address: str | None = None) -> Any:
        with translated(address or self.address):
            return await call
