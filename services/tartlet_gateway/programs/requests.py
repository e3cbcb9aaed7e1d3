"""Bodies of requests about programs: JSON, or multipart with the program's file as a part."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct
from python_multipart.exceptions import MultipartParseError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

import tartlet
from tartlet_common.bundles.layout import is_bundle
from tartlet_gateway.openai.bodies import decoded
from tartlet_gateway.openai.errors import ApiError
from tartlet_gateway.runs.sessions import Session, own_session, session_of

T = TypeVar("T", bound="Program")
MAX_PARTS: Final = 8
_WASM: Final = b"\0asm"


class Program(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program: Python text in `source`, or base64 in `wasm` (a module) or `bundle` (an archive of Python files).

    As multipart, each of them is the file `source`.
    """

    source: str | None = None
    wasm: bytes | None = None
    bundle: bytes | None = None
    filename: str = ""
    model: str = ""
    pool: str = ""
    durability: Literal["", "on", "degrade", "off"] = ""
    limits: tartlet.Limits = tartlet.Limits()

    def given(self) -> tartlet.Source | None:
        """Return the source that the request brings, None for none."""
        if sum(each is not None for each in (self.source, self.wasm, self.bundle)) > 1:
            raise ApiError(
                400, "Give one of source, wasm and bundle.", param="wasm" if self.wasm is not None else "bundle"
            )
        if self.wasm is not None:
            return tartlet.Source(self.wasm, tartlet.Language.WASM, self.filename or "program.wasm")
        if self.bundle is not None:
            if not is_bundle(self.bundle):
                raise ApiError(400, "bundle: no archive: make one with `tartlet build`.", param="bundle")
            return tartlet.Source(self.bundle, tartlet.Language.PYTHON, self.filename or "program.zip")
        if self.source is None:
            return None
        return tartlet.Source.python(self.source, self.filename or "program.py")

    def needed(self) -> tartlet.Source:
        """Return the source.

        Raises:
            ApiError: 400, there is none, or it is empty.
        """
        source = self.given()
        if source is None or not source.data:
            raise ApiError(400, "source: give a program's text, a Wasm module, or a file of this name.", param="source")
        return source


class Launch(Program, kw_only=True):
    """The body of `POST /v1/programs`: a program or the name of an inferlet, and how it is launched."""

    inferlet: str = ""
    args: list[str] = []
    idempotency_key: str = ""
    seed: int | None = None
    session: str = ""
    parent_session: str = ""
    ends_session: bool = False
    stream: bool = False
    tied: bool = False

    def in_session(self, headers: Any, tenant: str | None) -> Session:
        """Return the session that the body names, else the headers.

        Raises:
            BadSessionError: a name is too long.
        """
        if self.session:
            return own_session(tenant, self.session, self.parent_session, ends=self.ends_session)
        return session_of(headers, {}, tenant)

    def spec(self, named: Session, key: str = "") -> tartlet.LaunchSpec:
        """Return the launch, in the session that the request names.

        Raises:
            ApiError: 400, what to launch isn't said, or said twice.
            InvalidArgument: a field is wrong.
        """
        source = None if self.inferlet and self.given() is None else self.needed()
        if source is not None and self.inferlet:
            raise ApiError(400, "Give one of source, wasm and inferlet.", param="source")
        if self.tied and not self.stream:
            raise ApiError(400, "tied: the program would end at once: set stream to true.", param="tied")
        return tartlet.LaunchSpec(
            source=source,
            inferlet=self.inferlet,
            args=self.args,
            model=self.model,
            pool=self.pool,
            limits=self.limits,
            idempotency_key=self.idempotency_key or key,
            durability=self.durability,
            seed=self.seed,
            session=named.id,
            parent_session=named.parent,
            ends_session=named.ends,
        )


class Entry(Program, kw_only=True):
    """The body of `PUT /v1/inferlets/NAME`."""

    description: str = ""

    def entry(self, name: str) -> tartlet.CatalogueEntry:
        """Return the entry of the catalogue.

        Raises:
            ApiError: 400, there is no source.
        """
        return tartlet.CatalogueEntry(
            name=name,
            source=self.needed(),
            limits=self.limits,
            model=self.model,
            description=self.description,
            pool=self.pool,
            durability=self.durability,
        )


class Message(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/programs/ID/messages`: `text`, or `data` in base64."""

    text: str | None = None
    data: bytes | None = None

    def message(self) -> bytes:
        """Return the message's bytes.

        Raises:
            ApiError: 400, there are none or two.
        """
        if (self.text is None) == (self.data is None):
            raise ApiError(400, "Give one of text and data.", param="text")
        return self.text.encode() if self.text is not None else self.data or b""


_MESSAGE: Final = msgspec.json.Decoder(Message)


def kind_of(content_type: bytes | None) -> str:
    """Return a content type without its parameters.

    Example:
        >>> kind_of(b"Application/JSON; charset=utf-8")
        'application/json'
    """
    return (content_type or b"application/json").partition(b";")[0].strip().lower().decode("latin-1")


async def program_of(decoder: msgspec.json.Decoder[T], headers: Any, content_type: bytes | None, body: bytes) -> T:
    """Read a program from a body in JSON, as multipart, or as the program itself.

    Args:
        decoder: of the request in JSON.
        headers: the request's headers.
        content_type: one of them.
        body: the whole body.

    Raises:
        ApiError: 400 or 415.
    """
    match kind_of(content_type):
        case "application/json":
            return decoded(decoder, body)
        case "multipart/form-data":
            return await _multipart(decoder, headers, body)
        case "application/wasm" | "application/zip" | "application/octet-stream" | "text/x-python" | "text/plain":
            return _with_source(decoded(decoder, b"{}"), body, "")
    raise ApiError(
        415,
        "Send JSON, multipart/form-data with the file `source`, text/x-python, application/zip or application/wasm.",
    )


async def _multipart(decoder: msgspec.json.Decoder[T], headers: Any, body: bytes) -> T:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        Headers(raw=headers), whole(), max_files=1, max_fields=MAX_PARTS, max_part_size=max(len(body), 1)
    )
    try:
        form = await parser.parse()
    except (MultiPartException, MultipartParseError, KeyError, UnicodeError) as e:
        raise ApiError(400, f"The body is no multipart/form-data: {e}") from e
    try:
        fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        file = form.get("source")
        request = decoded(decoder, fields.pop("request", "{}").encode())
        if fields:
            raise ApiError(400, "Parts are the file source, and request in JSON.", param=min(fields)[:64])
        if not isinstance(file, UploadFile):
            return request
        return _with_source(request, await file.read(), file.filename or "")
    finally:
        await form.close()


def _with_source(request: T, data: bytes, filename: str) -> T:
    """Return the request with a file as its source: Wasm or an archive by its first bytes, else Python."""
    if request.source is not None or request.wasm is not None or request.bundle is not None:
        raise ApiError(400, "The source came twice.", param="source")
    if data.startswith(_WASM) or filename.endswith(".wasm"):
        request.wasm = data
    elif is_bundle(data):
        request.bundle = data
    else:
        try:
            request.source = data.decode()
        except UnicodeDecodeError as e:
            raise ApiError(400, "source: it is neither a Wasm module nor text in UTF-8.", param="source") from e
    request.filename = request.filename or filename
    return request


def message_of(content_type: bytes | None, body: bytes) -> bytes:
    """Return the message of a body in JSON; a body of another type is the message itself."""
    if kind_of(content_type) == "application/json":
        return decoded(_MESSAGE, body).message()
    return body
