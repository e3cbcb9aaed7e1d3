"""Makes calls between roles with identities that it is given, and says how each was answered.

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
"""A stream that was neither refused nor answered in time."""


MODULES: Final = (control_pb2, engine_pb2, programs_pb2)


class Identity(TypedDict):
    """PEM of what a caller brings; without an authority it doesn't even ask for TLS."""

    authority: str
    certificate: str
    key: str


class Call(TypedDict):
    """Who calls what, and where."""

    caller: str
    address: str
    method: str


class Request(TypedDict):
    """Callers by name, and the calls in their order."""

    identities: dict[str, Identity]
    calls: list[Call]


class Answer(Call):
    """A call with its status, and the typed error that came along."""

    code: str
    error: str
    fields: dict[str, Any]
    detail: str


def channel(address: str, identity: Identity) -> grpc.aio.Channel:
    """A channel with whatever the caller has."""
    if not identity["authority"]:
        return grpc.aio.insecure_channel(address)
    own = (identity["key"].encode(), identity["certificate"].encode()) if identity["key"] else (None, None)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(identity["authority"].encode(), *own))


def sends_a_stream(method: str) -> bool:
    """Whether the caller of a method may say more than one thing."""
    _, service, name = method.removeprefix("/").replace(".", "/").rsplit("/", 2)
    (found,) = [m.DESCRIPTOR.services_by_name[service] for m in MODULES if service in m.DESCRIPTOR.services_by_name]
    return bool(found.methods_by_name[name].client_streaming)


async def answer(to: grpc.aio.Channel, call: Call) -> Answer:
    """What comes back first: to one empty message, or to a stream on which nothing is said.

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
    """The typed error that came along; that of no error, if none did."""
    return bytes(dict(error.trailing_metadata() or ()).get("tartlet-error-bin", b""))


async def main(request: Request) -> list[Answer]:
    """All calls at once, those of one caller to one address over one connection."""
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
