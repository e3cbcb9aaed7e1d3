"""The part of WASI 0.2 that a component may use: everything not named here traps.

Clock and randomness are the guest's own (`determinism`), so that a journal replays it. A sleep moves the guest's clock
to its end; what the host does meanwhile is its business (`GuestHooks.on_sleep`). There are no files, no environment
and no network: opening, looking up and connecting fail with an error that the guest's language turns into its own.

Functions take (guest, arguments' address, result's address). Those in `SUSPENDING` may suspend the guest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tartlet_common.errors.registry import NotAllowed
from tartlet_runtime.wasm.boundary import values
from tartlet_runtime.wasm.boundary.capi import COMPONENT_VAL_BYTES
from tartlet_runtime.wasm.determinism import MAX_RANDOM_BYTES, NS_PER_READING, Clock, Random
from tartlet_runtime.wasm.linking.timers import Timers
from tartlet_runtime.wasm.types import STDERR, STDOUT

ALWAYS_READY = 0
"""Rep of pollables of streams: they never block."""
_WRITE_BYTES = 1 << 16
_STDIN = 0
_SECOND_ARGUMENT = COMPONENT_VAL_BYTES


class WasiGuest(Protocol):
    """What these functions need of a guest."""

    active_clock: Clock
    active_random: Random
    timers: Timers

    @property
    def context(self) -> int:
        """Address of its store's context."""

    def emit(self, stream: int, data: bytes) -> None:
        """Take bytes written to stdout or stderr."""

    def sleep_until(self, deadline_ns: int) -> None:
        """Suspend until then."""


Function = Callable[[WasiGuest, int, int], None]

# Resource types: any numbers, one per type, the same in every interface that uses the type.
POLLABLE, OUTPUT_STREAM, INPUT_STREAM, ERROR, NETWORK = 1, 2, 3, 4, 5

RESOURCES: dict[str, dict[str, int]] = {
    "wasi:io/poll": {"pollable": POLLABLE},
    "wasi:io/streams": {"output-stream": OUTPUT_STREAM, "input-stream": INPUT_STREAM},
    "wasi:io/error": {"error": ERROR},
    "wasi:sockets/network": {"network": NETWORK},
}


# ---- clocks and randomness ----


def _wall_now(guest: WasiGuest, args: int, result: int) -> None:
    values.write_datetime(result, guest.active_clock.now_ns())


def _wall_resolution(guest: WasiGuest, args: int, result: int) -> None:
    values.write_datetime(result, NS_PER_READING)


def _monotonic_now(guest: WasiGuest, args: int, result: int) -> None:
    values.write_u64(result, guest.active_clock.now_ns() - guest.active_clock.start_ns)


def _monotonic_resolution(guest: WasiGuest, args: int, result: int) -> None:
    values.write_u64(result, NS_PER_READING)


def _subscribe_duration(guest: WasiGuest, args: int, result: int) -> None:
    _own_timer(guest, result, guest.active_clock.now_ns() + values.read_u64(args))


def _subscribe_instant(guest: WasiGuest, args: int, result: int) -> None:
    _own_timer(guest, result, guest.active_clock.start_ns + values.read_u64(args))


def _own_timer(guest: WasiGuest, result: int, deadline_ns: int) -> None:
    rep = guest.timers.add(deadline_ns)
    values.write_owned(result, guest.context, rep=rep, resource_type=POLLABLE)


def _random_bytes(guest: WasiGuest, args: int, result: int) -> None:
    size = values.read_u64(args)
    if size > MAX_RANDOM_BYTES:  # besides, a list costs the host 32 bytes a byte
        raise NotAllowed(what=f"{size} random bytes at once")
    values.write_byte_list(result, guest.active_random.take(size))


def _random_u64(guest: WasiGuest, args: int, result: int) -> None:
    values.write_u64(result, int.from_bytes(guest.active_random.take(8), "little"))


def _random_seed(guest: WasiGuest, args: int, result: int) -> None:
    first, second = (int.from_bytes(guest.active_random.take(8), "little") for _ in range(2))
    values.write_u64_pair(result, first, second)


# ---- poll ----


def _is_ready(guest: WasiGuest, rep: int) -> bool:
    return rep == ALWAYS_READY or guest.timers.due_ns(rep) <= guest.active_clock.peek_ns()


def _pollable_ready(guest: WasiGuest, args: int, result: int) -> None:
    values.write_bool(result, _is_ready(guest, values.take_borrowed(args, guest.context)))


def _pollable_block(guest: WasiGuest, args: int, result: int) -> None:
    rep = values.take_borrowed(args, guest.context)
    if not _is_ready(guest, rep):
        guest.sleep_until(guest.timers.due_ns(rep))


def _poll(guest: WasiGuest, args: int, result: int) -> None:
    reps = [values.take_borrowed(cell, guest.context) for cell in values.elements(args)]
    ready = [i for i, rep in enumerate(reps) if _is_ready(guest, rep)]
    if not ready and reps:
        deadline_ns = min(guest.timers.due_ns(rep) for rep in reps)
        ready = [i for i, rep in enumerate(reps) if guest.timers.due_ns(rep) <= deadline_ns]
        guest.sleep_until(deadline_ns)
    values.write_u32_list(result, ready)


# ---- standard streams ----


def _owned_stream(rep: int, resource_type: int) -> Function:
    def get(guest: WasiGuest, args: int, result: int) -> None:
        values.write_owned(result, guest.context, rep=rep, resource_type=resource_type)

    return get


def _stream_subscribe(guest: WasiGuest, args: int, result: int) -> None:
    values.take_borrowed(args, guest.context)
    values.write_owned(result, guest.context, rep=ALWAYS_READY, resource_type=POLLABLE)


def _check_write(guest: WasiGuest, args: int, result: int) -> None:
    values.take_borrowed(args, guest.context)
    values.write_ok(result, values.u64(_WRITE_BYTES))


def _write(guest: WasiGuest, args: int, result: int) -> None:
    stream = values.take_borrowed(args, guest.context)
    guest.emit(stream, values.read_byte_list(args + _SECOND_ARGUMENT))
    values.write_ok(result)


def _flush(guest: WasiGuest, args: int, result: int) -> None:
    values.take_borrowed(args, guest.context)
    values.write_ok(result)


def _read_end(guest: WasiGuest, args: int, result: int) -> None:
    values.take_borrowed(args, guest.context)
    values.write_error_variant(result, b"closed")


# ---- what does not exist ----


def _nothing(guest: WasiGuest, args: int, result: int) -> None:
    values.write_none(result)


def _empty(guest: WasiGuest, args: int, result: int) -> None:
    values.write_empty_list(result)


def _denied(guest: WasiGuest, args: int, result: int) -> None:
    values.write_error_enum(result, b"access-denied")


def _denied_lookup(guest: WasiGuest, args: int, result: int) -> None:
    values.take_borrowed(args, guest.context)
    values.write_error_enum(result, b"access-denied")


def _network(guest: WasiGuest, args: int, result: int) -> None:
    values.write_owned(result, guest.context, rep=0, resource_type=NETWORK)


def _exit(guest: WasiGuest, args: int, result: int) -> None:
    raise NotAllowed(what="os._exit")


FUNCTIONS: dict[str, dict[str, Function]] = {
    "wasi:clocks/wall-clock": {"now": _wall_now, "resolution": _wall_resolution},
    "wasi:clocks/monotonic-clock": {
        "now": _monotonic_now,
        "resolution": _monotonic_resolution,
        "subscribe-duration": _subscribe_duration,
        "subscribe-instant": _subscribe_instant,
    },
    "wasi:random/random": {"get-random-bytes": _random_bytes, "get-random-u64": _random_u64},
    "wasi:random/insecure": {"get-insecure-random-bytes": _random_bytes, "get-insecure-random-u64": _random_u64},
    "wasi:random/insecure-seed": {"insecure-seed": _random_seed},
    "wasi:io/poll": {
        "[method]pollable.ready": _pollable_ready,
        "[method]pollable.block": _pollable_block,
        "poll": _poll,
    },
    "wasi:io/streams": {
        "[method]input-stream.read": _read_end,
        "[method]input-stream.blocking-read": _read_end,
        "[method]input-stream.subscribe": _stream_subscribe,
        "[method]output-stream.check-write": _check_write,
        "[method]output-stream.write": _write,
        "[method]output-stream.blocking-write-and-flush": _write,
        "[method]output-stream.flush": _flush,
        "[method]output-stream.blocking-flush": _flush,
        "[method]output-stream.subscribe": _stream_subscribe,
    },
    "wasi:cli/stdin": {"get-stdin": _owned_stream(_STDIN, INPUT_STREAM)},
    "wasi:cli/stdout": {"get-stdout": _owned_stream(STDOUT, OUTPUT_STREAM)},
    "wasi:cli/stderr": {"get-stderr": _owned_stream(STDERR, OUTPUT_STREAM)},
    "wasi:cli/terminal-stdin": {"get-terminal-stdin": _nothing},
    "wasi:cli/terminal-stdout": {"get-terminal-stdout": _nothing},
    "wasi:cli/terminal-stderr": {"get-terminal-stderr": _nothing},
    "wasi:cli/environment": {"get-environment": _empty, "get-arguments": _empty, "initial-cwd": _nothing},
    "wasi:cli/exit": {"exit": _exit, "exit-with-code": _exit},
    "wasi:filesystem/preopens": {"get-directories": _empty},
    "wasi:sockets/instance-network": {"instance-network": _network},
    "wasi:sockets/tcp-create-socket": {"create-tcp-socket": _denied},
    "wasi:sockets/udp-create-socket": {"create-udp-socket": _denied},
    "wasi:sockets/ip-name-lookup": {"resolve-addresses": _denied_lookup},
}

SUSPENDING = frozenset({"[method]pollable.block", "poll"})
