"""Read and write component values (`wasmtime_component_val_t`) at raw addresses.

Every function takes the address of a value. Strings, lists and records that we write are allocated by wasmtime's own
functions, because it frees them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
from wasmtime import _ffi

from tartlet_runtime.wasm.boundary import capi
from tartlet_runtime.wasm.boundary.capi import COMPONENT_VAL_BYTES, ComponentVal


def _kind(name: str) -> int:
    value: int = getattr(_ffi, f"WASMTIME_COMPONENT_{name}").value
    return value


BOOL, U8, U32, U64 = _kind("BOOL"), _kind("U8"), _kind("U32"), _kind("U64")
STRING, LIST, RECORD, TUPLE = _kind("STRING"), _kind("LIST"), _kind("RECORD"), _kind("TUPLE")
VARIANT, ENUM, OPTION, RESULT, RESOURCE = (
    _kind("VARIANT"),
    _kind("ENUM"),
    _kind("OPTION"),
    _kind("RESULT"),
    _kind("RESOURCE"),
)

at = ComponentVal.from_address


# ---- reading ----


def read_u64(address: int) -> int:
    """Read an unsigned integer."""
    value: int = at(address).a
    return value


def read_string(address: int) -> bytes:
    """Read a string's UTF-8."""
    value = at(address)
    return ctypes.string_at(value.b, value.a) if value.a else b""


def read_byte_list(address: int) -> bytes:
    """Read a `list<u8>`, which arrives as one 32-byte value per byte."""
    value = at(address)
    if not value.a:
        return b""
    cells = np.frombuffer(ctypes.string_at(value.b, COMPONENT_VAL_BYTES * value.a), np.uint8)
    return cells.reshape(-1, COMPONENT_VAL_BYTES)[:, 8].tobytes()


def elements(address: int) -> Iterator[int]:
    """Return the addresses of a list's elements."""
    value = at(address)
    return iter(range(value.b, value.b + COMPONENT_VAL_BYTES * value.a, COMPONENT_VAL_BYTES)) if value.a else iter(())


# ---- writing ----


def write_bool(address: int, value: bool) -> None:  # noqa: FBT001 - the value written
    """Write a bool."""
    cell = at(address)
    cell.kind, cell.a = BOOL, int(value)


def write_u32(address: int, value: int) -> None:
    """Write a u32."""
    cell = at(address)
    cell.kind, cell.a = U32, value


def write_u64(address: int, value: int) -> None:
    """Write a u64."""
    cell = at(address)
    cell.kind, cell.a = U64, value & 0xFFFF_FFFF_FFFF_FFFF


def write_string(address: int, utf8: bytes) -> None:
    """Write a string from its UTF-8."""
    at(address).kind = STRING
    capi.byte_vec_new(address + 8, len(utf8), utf8)


def write_byte_list(address: int, data: bytes) -> None:
    """Write a `list<u8>`."""
    capi.vallist_new_uninit(address + 8, len(data))
    cell = at(address)
    cell.kind = LIST
    if data:
        cells = np.zeros((len(data), COMPONENT_VAL_BYTES), np.uint8)
        cells[:, 0] = U8
        cells[:, 8] = np.frombuffer(data, np.uint8)
        ctypes.memmove(cell.b, cells.ctypes.data, cells.nbytes)


def write_empty_list(address: int) -> None:
    """Write a list without elements."""
    write_byte_list(address, b"")


def write_u32_list(address: int, values: Sequence[int]) -> None:
    """Write a `list<u32>`."""
    capi.vallist_new_uninit(address + 8, len(values))
    at(address).kind = LIST
    for cell, value in zip(elements(address), values, strict=True):
        write_u32(cell, value)


def write_u64_pair(address: int, first: int, second: int) -> None:
    """Write a `tuple<u64, u64>`."""
    capi.vallist_new_uninit(address + 8, 2)
    at(address).kind = TUPLE
    for cell, value in zip(elements(address), (first, second), strict=True):
        write_u64(cell, value)


def write_datetime(address: int, time_ns: int) -> None:
    """Write a `record { seconds: u64, nanoseconds: u32 }`."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    capi.valrecord_new_uninit(address + 8, 2)
    cell = at(address)
    cell.kind = RECORD
    for i, (name, kind, value) in enumerate(((b"seconds", U64, seconds), (b"nanoseconds", U32, nanoseconds))):
        entry = cell.b + i * capi.RECORD_ENTRY_BYTES
        capi.byte_vec_new(entry, len(name), name)
        field = at(entry + capi.RECORD_ENTRY_BYTES - COMPONENT_VAL_BYTES)
        field.kind, field.a = kind, value


def write_none(address: int) -> None:
    """Write an option's `none`."""
    cell = at(address)
    cell.kind, cell.a = OPTION, 0


def write_ok(address: int, payload: ComponentVal | None = None) -> None:
    """Write a result's `ok`, with a payload that owns nothing."""
    _write_result(address, is_ok=True, payload=payload)


def write_error_enum(address: int, case: bytes) -> None:
    """Write a result's `err` with a case of an enum."""
    payload = ComponentVal()
    payload.kind = ENUM
    capi.byte_vec_new(ctypes.addressof(payload) + 8, len(case), case)
    _write_result(address, is_ok=False, payload=payload)


def write_error_variant(address: int, case: bytes) -> None:
    """Write a result's `err` with a case, without a value, of a variant."""
    payload = ComponentVal()
    payload.kind = VARIANT
    capi.byte_vec_new(ctypes.addressof(payload) + 8, len(case), case)
    _write_result(address, is_ok=False, payload=payload)


def u64(value: int) -> ComponentVal:
    """Return a u64 to use as a payload."""
    cell = ComponentVal()
    cell.kind, cell.a = U64, value
    return cell


def _write_result(address: int, *, is_ok: bool, payload: ComponentVal | None) -> None:
    boxed = capi.component_val_new(ctypes.byref(payload)) if payload is not None else 0
    cell = at(address)
    cell.a, cell.b = int(is_ok), boxed
    cell.kind = RESULT


# ---- resources ----


def write_owned(address: int, context: int, *, rep: int, resource_type: int) -> None:
    """Write a handle, owned by the guest, of a host resource."""
    resource = capi.resource_host_new(True, rep, resource_type)
    handle = ctypes.c_void_p()
    error = capi.resource_host_to_any(context, resource, ctypes.byref(handle))
    capi.resource_host_delete(resource)
    if error:
        raise RuntimeError(capi.take_error(error))
    cell = at(address)
    cell.kind, cell.a = RESOURCE, handle.value


def take_borrowed(address: int, context: int) -> int:
    """Release a borrowed handle, as wasmtime demands before the host function returns, and return its rep."""
    resource = ctypes.c_void_p()
    error = capi.resource_any_to_host(context, at(address).a, ctypes.byref(resource))
    if error:
        raise RuntimeError(capi.take_error(error))
    rep: int = capi.resource_host_rep(resource)
    capi.resource_host_delete(resource)
    return rep
