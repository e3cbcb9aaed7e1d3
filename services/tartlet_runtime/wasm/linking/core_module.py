"""A core-Wasm module, linked to our four functions."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import c_uint32, c_void_p

import wasmtime

from tartlet_common.errors.registry import CorruptModule
from tartlet_runtime.wasm.boundary import capi
from tartlet_runtime.wasm.boundary.state import trap
from tartlet_runtime.wasm.compiling.aot import Compiled, ModuleKind
from tartlet_runtime.wasm.determinism import MAX_RANDOM_BYTES
from tartlet_runtime.wasm.linking.linked_module import Instance, LinkedModule, ModuleHost, check

IMPORT_MODULE = b"tartlet"
MAIN = "tartlet_main"
WASM_PAGE_BYTES = 1 << 16


class CoreModule(LinkedModule):
    """A core-Wasm module with our four imports; anything else it imports traps when called."""

    kind = ModuleKind.CORE
    takes_text = False

    def __init__(self, host: ModuleHost, compiled: Compiled) -> None:
        """Load and link.

        Raises:
            CorruptModule: it does not export what a guest must, or imports what is no function.
        """
        self.digest = compiled.digest
        self._host = host
        try:
            self._module = wasmtime.Module.deserialize_file(host.engine, str(compiled.path))
        except wasmtime.WasmtimeError as e:
            raise CorruptModule(detail=str(e)) from e
        self.can_be_spare = not compiled.has_start
        self.initial_memory_bytes = _check_exports(self._module)
        self._clock = capi.SYNC_CALLBACK(self._clock_ns)
        self._random = capi.SYNC_CALLBACK(self._random_bytes)
        linker = wasmtime.Linker(host.engine)
        self._types: list[wasmtime.FuncType] = []
        self._define(linker, capi.linker_define_sync, b"submit", "ii", "", host.boundary.submit_address)
        self._define(linker, capi.linker_define_async, b"wait", "iiiI", "i", host.boundary.wait_address)
        self._define(linker, capi.linker_define_sync, b"clock_ns", "", "I", capi.address(self._clock))
        self._define(linker, capi.linker_define_sync, b"random", "ii", "", capi.address(self._random))
        pointer = capi.address(linker.ptr())
        module = capi.address(self._module.ptr())
        check(capi.linker_unknown_as_traps(pointer, module))
        pre = c_void_p()
        check(capi.linker_instantiate_pre(pointer, module, ctypes.byref(pre)))
        assert pre.value is not None
        self._pre = pre.value
        weakref.finalize(self, capi.instance_pre_delete, self._pre)

    def begin_instance(self, guest: Instance) -> int:
        """Instantiate; a start function runs under the guest's slice like the rest."""
        guest.instance = (ctypes.c_uint8 * capi.INSTANCE_BYTES)()
        future: int = capi.instance_pre_instantiate_async(
            self._pre, guest.context, guest.instance, ctypes.byref(guest.trap), ctypes.byref(guest.error)
        )
        return future

    def begin_call(self, guest: Instance) -> int:
        """Call `tartlet_main`."""
        memory, main = capi.Extern(), capi.Extern()
        found = capi.instance_export_get(guest.context, guest.instance, b"memory", 6, ctypes.byref(memory))
        assert found
        found = capi.instance_export_get(guest.context, guest.instance, MAIN.encode(), len(MAIN), ctypes.byref(main))
        assert found
        guest.state.memory = ctypes.addressof(memory) + capi.Extern.of.offset
        guest.results = capi.Val()
        guest.call_buffers = (memory, main)
        future: int = capi.func_call_async(
            guest.context,
            ctypes.byref(main, capi.Extern.of.offset),
            None,
            0,
            ctypes.byref(guest.results),
            1,
            ctypes.byref(guest.trap),
            ctypes.byref(guest.error),
        )
        return future

    def _define(
        self,
        linker: wasmtime.Linker,
        define: Callable[..., int | None],
        name: bytes,
        params: str,
        results: str,
        callback: int,
    ) -> None:
        kinds = {"i": wasmtime.ValType.i32, "I": wasmtime.ValType.i64}
        function_type = wasmtime.FuncType([kinds[p]() for p in params], [kinds[r]() for r in results])
        self._types.append(function_type)
        pointer, type_pointer = capi.address(linker.ptr()), capi.address(function_type.ptr())
        check(define(pointer, IMPORT_MODULE, len(IMPORT_MODULE), name, len(name), type_pointer, callback, None, None))

    def _clock_ns(self, env: int, caller: int, args: int, count: int) -> int | None:
        try:
            guest = self._host.guest_of(capi.caller_context(caller))
            ctypes.c_int64.from_address(args).value = guest.active_clock.now_ns()
        except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
            return trap(f"tartlet: {e!r}")
        return None

    def _random_bytes(self, env: int, caller: int, args: int, count: int) -> int | None:
        try:
            guest = self._host.guest_of(capi.caller_context(caller))
            words = (c_uint32 * 8).from_address(args)
            pointer, length = words[0], words[4]
            memory = guest.state.memory
            if not memory or pointer + length > capi.memory_data_size(guest.context, memory):
                return trap("tartlet: random() points outside the memory")
            if length > MAX_RANDOM_BYTES:
                return trap(f"tartlet: random() of {length} bytes; {MAX_RANDOM_BYTES} at once are allowed")
            data = guest.active_random.take(length)
            ctypes.memmove(capi.memory_data(guest.context, memory) + pointer, data, length)
        except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
            return trap(f"tartlet: {e!r}")
        return None


def _check_exports(module: wasmtime.Module) -> int:
    """Check the exports, and return the initial size of the module's memory."""
    exports = {export.name: export.type for export in module.exports}
    memory = exports.get("memory")
    if not isinstance(memory, wasmtime.MemoryType):
        raise CorruptModule(detail="it does not export its memory as `memory`")
    main = exports.get(MAIN)
    if not isinstance(main, wasmtime.FuncType) or main.params or [str(r) for r in main.results] != ["i32"]:
        raise CorruptModule(detail=f"it does not export `{MAIN}() -> i32`")
    return memory.limits.min * WASM_PAGE_BYTES
