"""Raw ctypes over the libwasmtime of the wasmtime wheel: what `wasmtime._bindings` declares but its classes hide.

Two handles on one library: `_dll` releases the GIL around a call (anything that runs guest code, compiles or frees),
`_pydll` keeps it (very short calls that can't call back). Pointers are plain integers here.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

import wasmtime
from wasmtime import _bindings, _ffi

LIBRARY_PATH: str = _ffi.dll._name  # noqa: SLF001 - the wheel's own library; it offers no public name
_dll = ctypes.CDLL(LIBRARY_PATH)
_pydll = ctypes.PyDLL(LIBRARY_PATH)


class Extern(Structure):
    """wasmtime_extern_t, with room to spare."""

    _fields_ = (("kind", c_uint8), ("pad", c_uint8 * 7), ("of", c_uint64 * 8))


class Val(Structure):
    """wasmtime_val_t."""

    _fields_ = (("kind", c_uint8), ("pad", c_uint8 * 7), ("i64", c_int64), ("rest", c_uint64 * 2))


class ComponentVal(Structure):
    """wasmtime_component_val_t: kind and up to three words."""

    _fields_ = (("kind", c_uint8), ("pad", c_uint8 * 7), ("a", c_uint64), ("b", c_uint64), ("c", c_uint64))


class Continuation(Structure):
    """wasmtime_async_continuation_t."""

    _fields_ = (("callback", c_void_p), ("env", c_void_p), ("finalizer", c_void_p))


class ByteVec(Structure):
    """wasm_byte_vec_t."""

    _fields_ = (("size", c_size_t), ("data", c_void_p))


VAL_BYTES = ctypes.sizeof(Val)
COMPONENT_VAL_BYTES = ctypes.sizeof(ComponentVal)
INSTANCE_BYTES = ctypes.sizeof(_ffi.wasmtime_instance_t)
RECORD_ENTRY_BYTES = ctypes.sizeof(ByteVec) + COMPONENT_VAL_BYTES

# A wheel whose structs differ would corrupt memory: refuse it at import.
if ctypes.sizeof(Extern) < ctypes.sizeof(_ffi.wasmtime_extern_t):
    raise ImportError("wasmtime_extern_t has grown")
if ctypes.sizeof(_ffi.wasmtime_val_t) != VAL_BYTES:
    raise ImportError("wasmtime_val_t has changed its size")
if ctypes.sizeof(_ffi.wasmtime_component_val_t) != COMPONENT_VAL_BYTES:
    raise ImportError("wasmtime_component_val_t has changed its size")

SYNC_CALLBACK = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_size_t)
ASYNC_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)
CONTINUATION_CALLBACK = ctypes.CFUNCTYPE(c_bool, c_void_p)
COMPONENT_CALLBACK = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)
COMPONENT_ASYNC_CALLBACK = ctypes.CFUNCTYPE(
    None, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p
)
RESOURCE_DESTRUCTOR = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_uint32)


def _fn(lib: ctypes.CDLL, name: str, result: Any, *args: Any) -> Any:
    function = getattr(lib, name)
    function.restype = result
    function.argtypes = list(args)
    return function


_p = c_void_p
# stores
store_new = _fn(_dll, "wasmtime_store_new", _p, _p, _p, _p)
store_delete = _fn(_dll, "wasmtime_store_delete", None, _p)
store_context = _fn(_pydll, "wasmtime_store_context", _p, _p)
caller_context = _fn(_pydll, "wasmtime_caller_context", _p, _p)
context_get_data = _fn(_pydll, "wasmtime_context_get_data", _p, _p)
store_limiter = _fn(_pydll, "wasmtime_store_limiter", None, _p, c_int64, c_int64, c_int64, c_int64, c_int64)
set_epoch_deadline = _fn(_pydll, "wasmtime_context_set_epoch_deadline", None, _p, c_uint64)
epoch_yield_and_update = _fn(_pydll, "wasmtime_context_epoch_deadline_async_yield_and_update", _p, _p, c_uint64)
increment_epoch = _fn(_pydll, "wasmtime_engine_increment_epoch", None, _p)
# futures
future_poll = _fn(_dll, "wasmtime_call_future_poll", c_bool, _p)
future_delete = _fn(_dll, "wasmtime_call_future_delete", None, _p)
# core modules
linker_define_sync = _fn(
    _dll, "wasmtime_linker_define_func_unchecked", _p, _p, c_char_p, c_size_t, c_char_p, c_size_t, _p, _p, _p, _p
)
linker_define_async = _fn(
    _dll, "wasmtime_linker_define_async_func", _p, _p, c_char_p, c_size_t, c_char_p, c_size_t, _p, _p, _p, _p
)
linker_unknown_as_traps = _fn(_dll, "wasmtime_linker_define_unknown_imports_as_traps", _p, _p, _p)
linker_instantiate_pre = _fn(_dll, "wasmtime_linker_instantiate_pre", _p, _p, _p, _p)
instance_pre_delete = _fn(_dll, "wasmtime_instance_pre_delete", None, _p)
instance_pre_instantiate_async = _fn(_dll, "wasmtime_instance_pre_instantiate_async", _p, _p, _p, _p, _p, _p)
instance_export_get = _fn(_pydll, "wasmtime_instance_export_get", c_bool, _p, _p, c_char_p, c_size_t, _p)
func_call_async = _fn(_dll, "wasmtime_func_call_async", _p, _p, _p, _p, c_size_t, _p, c_size_t, _p, _p)
memory_data = _fn(_pydll, "wasmtime_memory_data", _p, _p, _p)
memory_data_size = _fn(_pydll, "wasmtime_memory_data_size", c_size_t, _p, _p)
# traps and errors
trap_new = _fn(_pydll, "wasmtime_trap_new", _p, c_char_p, c_size_t)
trap_code = _fn(_pydll, "wasmtime_trap_code", c_bool, _p, POINTER(c_uint8))
trap_message = _fn(_pydll, "wasm_trap_message", None, _p, _p)
trap_delete = _fn(_pydll, "wasm_trap_delete", None, _p)
error_new = _fn(_pydll, "wasmtime_error_new", _p, c_char_p)
error_message = _fn(_pydll, "wasmtime_error_message", None, _p, _p)
error_delete = _fn(_pydll, "wasmtime_error_delete", None, _p)
byte_vec_new = _fn(_pydll, "wasm_byte_vec_new", None, _p, c_size_t, c_char_p)
byte_vec_delete = _fn(_pydll, "wasm_byte_vec_delete", None, _p)
# components
component_linker_new = _fn(_dll, "wasmtime_component_linker_new", _p, _p)
component_linker_delete = _fn(_dll, "wasmtime_component_linker_delete", None, _p)
component_linker_root = _fn(_dll, "wasmtime_component_linker_root", _p, _p)
component_linker_unknown_as_traps = _fn(_dll, "wasmtime_component_linker_define_unknown_imports_as_traps", _p, _p, _p)
component_linker_instantiate_async = _fn(_dll, "wasmtime_component_linker_instantiate_async", _p, _p, _p, _p, _p, _p)
linker_instance_add_instance = _fn(
    _dll, "wasmtime_component_linker_instance_add_instance", _p, _p, c_char_p, c_size_t, _p
)
linker_instance_delete = _fn(_dll, "wasmtime_component_linker_instance_delete", None, _p)
linker_instance_add_func = _fn(
    _dll, "wasmtime_component_linker_instance_add_func", _p, _p, c_char_p, c_size_t, _p, _p, _p
)
linker_instance_add_func_async = _fn(
    _dll, "wasmtime_component_linker_instance_add_func_async", _p, _p, c_char_p, c_size_t, _p, _p, _p
)
linker_instance_add_resource = _fn(
    _dll, "wasmtime_component_linker_instance_add_resource", _p, _p, c_char_p, c_size_t, _p, _p, _p, _p
)
component_export_index = _fn(_pydll, "wasmtime_component_get_export_index", _p, _p, _p, c_char_p, c_size_t)
component_instance_get_func = _fn(_pydll, "wasmtime_component_instance_get_func", c_bool, _p, _p, _p, _p)
component_func_call_async = _fn(_dll, "wasmtime_component_func_call_async", _p, _p, _p, _p, c_size_t, _p, c_size_t, _p)
component_val_delete = _fn(_pydll, "wasmtime_component_val_delete", None, _p)
component_val_new = _fn(_pydll, "wasmtime_component_val_new", _p, _p)
vallist_new_uninit = _fn(_pydll, "wasmtime_component_vallist_new_uninit", None, _p, c_size_t)
valrecord_new_uninit = _fn(_pydll, "wasmtime_component_valrecord_new_uninit", None, _p, c_size_t)
resource_type_new_host = _fn(_dll, "wasmtime_component_resource_type_new_host", _p, c_uint32)
resource_type_delete = _fn(_dll, "wasmtime_component_resource_type_delete", None, _p)
resource_host_new = _fn(_pydll, "wasmtime_component_resource_host_new", _p, c_bool, c_uint32, c_uint32)
resource_host_rep = _fn(_pydll, "wasmtime_component_resource_host_rep", c_uint32, _p)
resource_host_to_any = _fn(_pydll, "wasmtime_component_resource_host_to_any", _p, _p, _p, _p)
resource_host_delete = _fn(_pydll, "wasmtime_component_resource_host_delete", None, _p)
resource_any_to_host = _fn(_pydll, "wasmtime_component_resource_any_to_host", _p, _p, _p, _p)
# pooling
_pooling_new = _fn(_pydll, "wasmtime_pooling_allocation_config_new", _p)
_pooling_delete = _fn(_pydll, "wasmtime_pooling_allocation_config_delete", None, _p)
_pooling_set = _fn(_pydll, "wasmtime_pooling_allocation_strategy_set", None, _p, _p)
async_stack_size_set = _fn(_pydll, "wasmtime_config_async_stack_size_set", None, _p, c_uint64)

KIND_I32 = 0


def address(pointer: Any) -> int:
    """Return the integer value of a ctypes pointer or of a `Managed` object's `ptr()`."""
    value = ctypes.cast(pointer, c_void_p).value
    assert value is not None
    return value


def set_pooling(config: wasmtime.Config, **sizes: int) -> None:
    """Give a `Config` the pooling allocator with `sizes` (names as in wasmtime's PoolingAllocationConfig)."""
    pool = _pooling_new()
    for name, value in sizes.items():
        symbol = f"wasmtime_pooling_allocation_config_{name}_set"
        value_type = getattr(_bindings, f"_{symbol}").argtypes[1]
        _fn(_pydll, symbol, None, c_void_p, value_type)(pool, value)
    _pooling_set(address(config.ptr()), pool)
    _pooling_delete(pool)


def take_error(pointer: int) -> str:
    """Return the message of a wasmtime_error_t, which is freed."""
    vec = ByteVec()
    error_message(pointer, ctypes.byref(vec))
    text = ctypes.string_at(vec.data, vec.size).decode("utf-8", "replace") if vec.size else ""
    byte_vec_delete(ctypes.byref(vec))
    error_delete(pointer)
    return text


def take_trap(pointer: int) -> tuple[int | None, str]:
    """Code (None for a host's own trap) and message of a wasm_trap_t, which is freed."""
    code = c_uint8()
    number = code.value if trap_code(pointer, ctypes.byref(code)) else None
    vec = ByteVec()
    trap_message(pointer, ctypes.byref(vec))
    text = ctypes.string_at(vec.data, vec.size).decode("utf-8", "replace").rstrip("\0") if vec.size else ""
    byte_vec_delete(ctypes.byref(vec))
    trap_delete(pointer)
    return number, text
