"""Makes calls between roles with given identities, and prints how each was answered.

Run in a pod, from the source alone: standard input is `Request` as JSON, standard output a list of `Answer`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final, TypedDict

import grpc
import grpc.aio

from tartlet_common.rpc.error_proto import error_from_proto
from tartlet_protos import common_pb2, control_pb2, engine_pb2, programs_pb2

ANSWER_S: Final = 5.0
OPEN: Final = "OPEN"
"""The status of a stream that was neither refused nor answered in time."""


MODULES: Final = (control_pb2, engine_pb2, programs_pb2)


class Identity(TypedDict):
    """A caller's key and certificates as PEM; a caller without an authority doesn't use TLS."""

    authority: str
    certificate: str
    key: str


class Call(TypedDict):
    """A call: its caller, method and address."""

    caller: str
    address: str
    method: str


class Request(TypedDict):
    """Callers by name, and the calls in their order."""

    identities: dict[str, Identity]
    calls: list[Call]


class Answer(Call):
    """A call with its status and its typed error."""

    code: str
    error: str
    fields: dict[str, Any]
    detail: str


def channel(address: str, identity: Identity) -> grpc.aio.Channel:
    """Returns a channel with the caller's credentials."""
    if not identity["authority"]:
        return grpc.aio.insecure_channel(address)
    own = (identity["key"].encode(), identity["certificate"].encode()) if identity["key"] else (None, None)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(identity["authority"].encode(), *own))


def sends_a_stream(method: str) -> bool:
    """Whether a method takes a stream of messages."""
    _, service, name = method.removeprefix("/").replace(".", "/").rsplit("/", 2)
    (found,) = [m.DESCRIPTOR.services_by_name[service] for m in MODULES if service in m.DESCRIPTOR.services_by_name]
    return bool(found.methods_by_name[name].client_streaming)


async def answer(to: grpc.aio.Channel, call: Call) -> Answer:
    """Returns the first answer: to one empty message, or to a stream without messages.

    (A message that is being sent while its call is refused would hide the refusal behind an error of gRPC's own.)
    """
    says = None if sends_a_stream(call["method"]) else iter([b""])
    make: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = to.stream_stream(call["method"])
    stream = make(says, timeout=ANSWER_S)
    out: Answer = {**call, "code": grpc.StatusCode.OK.name, "error": "", "fields": {}, "detail": ""}
    try:
        await stream.read()
    except grpc.aio.AioRpcError as e:
        out["code"] = OPEN if e.code() is grpc.StatusCode.DEADLINE_EXCEEDED else e.code().name
        out["detail"] = e.details() or ""
        typed = error_from_proto(common_pb2.Error.FromString(_packed(e)))
        if typed is not None:
            out["error"], out["fields"] = type(typed).__name__, dict(typed.fields)
    finally:
        stream.cancel()
    return out


def _packed(error: grpc.aio.AioRpcError) -> bytes:
    """Returns the typed error of an answer, or an empty one."""
    return bytes(dict(error.trailing_metadata() or ()).get("tartlet-error-bin", b""))


async def main(request: Request) -> list[Answer]:
    """Makes all calls at once; calls of one caller to one address share a connection."""
    channels = {
        (caller, address): channel(address, request["identities"][caller])
        for caller, address in {(c["caller"], c["address"]) for c in request["calls"]}
    }
    answers = await asyncio.gather(*(answer(channels[c["caller"], c["address"]], c) for c in request["calls"]))
    for each in channels.values():
        await each.close()
    return answers


if __name__ == "__main__":
    json.dump(asyncio.run(main(json.load(sys.stdin))), sys.stdout)
