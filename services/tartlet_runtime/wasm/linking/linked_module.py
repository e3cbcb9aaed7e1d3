"""A loaded module, linked to the host's functions and ready to be instantiated many times."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import c_uint32, c_void_p
from typing import TYPE_CHECKING, Any, Protocol

import wasmtime
from wasmtime.component import Component

from tartlet_common.errors.registry import CorruptModule, MalformedSubmission
from tartlet_runtime.wasm.boundary import capi, values
from tartlet_runtime.wasm.boundary.state import trap
from tartlet_runtime.wasm.compiling.aot import Compiled, ModuleKind
from tartlet_runtime.wasm.determinism import MAX_RANDOM_BYTES
from tartlet_runtime.wasm.linking import wasi

if TYPE_CHECKING:
    from tartlet_runtime.wasm.boundary.shim import Boundary
    from tartlet_runtime.wasm.fibers.fiber import Guest

IMPORT_MODULE = b"tartlet"
MAIN = "tartlet_main"
HOST_INTERFACE = "tartlet:inferlet/host"
PREPARE = b"prepare"
RUN = b"run"
WASM_PAGE_BYTES = 1 << 16
_READY = 1


class World(Protocol):
    """What programs need of the host that they are linked to."""

    engine: wasmtime.Engine
    boundary: Boundary

    def guest_of(self, context: int) -> Guest:
        """The guest whose store has this context."""


class Program:
    """A linked module. Made by `WasmHost.load`; keep it as long as guests of it live (they hold it too)."""

    kind: ModuleKind
    digest: str
    has_prepare = False
    takes_text = True
    """Its call is given what the launch brought; else the call can be made ahead too."""
    can_be_spare = True
    """Instances can be made ahead of a launch: that runs no code which a program's own limits should hold."""
    initial_memory_bytes = 0
    """What an instance has from its start, where that is declared."""

    def begin_instance(self, guest: Guest) -> int:
        """A future that instantiates the module in the guest's store."""
        raise NotImplementedError

    def begin_prepare(self, guest: Guest) -> int | None:
        """A future that does what does not depend on the program; None if there is nothing to do."""
        return None

    def begin_call(self, guest: Guest) -> int:
        """A future that runs the program."""
        raise NotImplementedError


class CoreProgram(Program):
    """A core-Wasm module with our four imports; anything else it imports traps when called."""

    kind = ModuleKind.CORE
    takes_text = False

    def __init__(self, world: World, compiled: Compiled) -> None:
        """Load and link.

        Raises:
            CorruptModule: it does not export what a guest must, or imports what is no function.
        """
        self.digest = compiled.digest
        self._world = world
        try:
            self._module = wasmtime.Module.deserialize_file(world.engine, str(compiled.path))
        except wasmtime.WasmtimeError as e:
            raise CorruptModule(detail=str(e)) from e
        self.can_be_spare = not compiled.has_start
        self.initial_memory_bytes = _check_exports(self._module)
        self._clock = capi.SYNC_CALLBACK(self._clock_ns)
        self._random = capi.SYNC_CALLBACK(self._random_bytes)
        linker = wasmtime.Linker(world.engine)
        self._types: list[wasmtime.FuncType] = []
        self._define(linker, capi.linker_define_sync, b"submit", "ii", "", world.boundary.submit_address)
        self._define(linker, capi.linker_define_async, b"wait", "iiiI", "i", world.boundary.wait_address)
        self._define(linker, capi.linker_define_sync, b"clock_ns", "", "I", capi.address(self._clock))
        self._define(linker, capi.linker_define_sync, b"random", "ii", "", capi.address(self._random))
        pointer = capi.address(linker.ptr())
        module = capi.address(self._module.ptr())
        _check(capi.linker_unknown_as_traps(pointer, module))
        pre = c_void_p()
        _check(capi.linker_instantiate_pre(pointer, module, ctypes.byref(pre)))
        assert pre.value is not None
        self._pre = pre.value
        weakref.finalize(self, capi.instance_pre_delete, self._pre)

    def begin_instance(self, guest: Guest) -> int:
        """Instantiate; a start function runs under the guest's slice like the rest."""
        guest.instance = (ctypes.c_uint8 * capi.INSTANCE_BYTES)()
        future: int = capi.instance_pre_instantiate_async(
            self._pre, guest.context, guest.instance, ctypes.byref(guest.trap), ctypes.byref(guest.error)
        )
        return future

    def begin_call(self, guest: Guest) -> int:
        """Call `tartlet_main`."""
        memory, main = capi.Extern(), capi.Extern()
        found = capi.instance_export_get(guest.context, guest.instance, b"memory", 6, ctypes.byref(memory))
        assert found
        found = capi.instance_export_get(guest.context, guest.instance, MAIN.encode(), len(MAIN), ctypes.byref(main))
        assert found
        guest.state.memory = ctypes.addressof(memory) + capi.Extern.of.offset
        guest.results = capi.Val()
        guest.kept = (memory, main)
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
        _check(define(pointer, IMPORT_MODULE, len(IMPORT_MODULE), name, len(name), type_pointer, callback, None, None))

    def _clock_ns(self, env: int, caller: int, args: int, count: int) -> int | None:
        try:
            guest = self._world.guest_of(capi.caller_context(caller))
            ctypes.c_int64.from_address(args).value = guest.active_clock.now_ns()
        except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
            return trap(f"tartlet: {e!r}")
        return None

    def _random_bytes(self, env: int, caller: int, args: int, count: int) -> int | None:
        try:
            guest = self._world.guest_of(capi.caller_context(caller))
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


class ComponentProgram(Program):
    """A component of the world `tartlet:inferlet/inferlet`, with the allow-listed WASI."""

    kind = ModuleKind.COMPONENT

    def __init__(self, world: World, compiled: Compiled) -> None:
        """Load and link.

        Raises:
            CorruptModule: it is no component of our world.
        """
        self.digest = compiled.digest
        self._world = world
        self._callbacks: list[Any] = []
        self._in_c = {_submit: world.boundary.submit_string_address, _wait: world.boundary.wait_string_address}
        try:
            self._component = Component.deserialize_file(world.engine, str(compiled.path))
        except wasmtime.WasmtimeError as e:
            raise CorruptModule(detail=str(e)) from e
        self._pointer = capi.address(self._component.ptr())
        self._linker: int = capi.component_linker_new(capi.address(world.engine.ptr()))
        weakref.finalize(self, capi.component_linker_delete, self._linker)
        self._link()
        self._run_index = capi.component_export_index(self._pointer, None, RUN, len(RUN))
        self._prepare_index = capi.component_export_index(self._pointer, None, PREPARE, len(PREPARE))
        self.has_prepare = bool(self._prepare_index)
        if not self._run_index:
            raise CorruptModule(detail="the component does not export `run`")

    def begin_instance(self, guest: Guest) -> int:
        """Instantiate."""
        guest.instance = (ctypes.c_uint64 * 2)()
        future: int = capi.component_linker_instantiate_async(
            self._linker, guest.context, self._pointer, guest.instance, ctypes.byref(guest.error)
        )
        return future

    def begin_prepare(self, guest: Guest) -> int | None:
        """Call `prepare()`, if the component has it."""
        if not self.has_prepare:
            return None
        function = self._function(guest, self._prepare_index)
        guest.kept = (function,)
        future: int = capi.component_func_call_async(
            function, guest.context, None, 0, None, 0, ctypes.byref(guest.error)
        )
        return future

    def begin_call(self, guest: Guest) -> int:
        """Call `run(source, filename, args)`."""
        function = self._function(guest, self._run_index)
        texts = guest.arguments
        buffers = [ctypes.create_string_buffer(text, len(text) or 1) for text in texts]
        args = (capi.ComponentVal * len(texts))()
        for cell, text, buffer in zip(args, texts, buffers, strict=True):
            cell.kind, cell.a, cell.b = values.STRING, len(text), ctypes.addressof(buffer)
        guest.results = capi.ComponentVal()
        guest.kept = (function, args, buffers)
        future: int = capi.component_func_call_async(
            function, guest.context, args, len(texts), ctypes.byref(guest.results), 1, ctypes.byref(guest.error)
        )
        return future

    @staticmethod
    def _function(guest: Guest, index: int) -> Any:
        function = (ctypes.c_uint64 * 8)()
        found = capi.component_instance_get_func(guest.instance, guest.context, index, function)
        assert found
        return function

    # ---- linking: exactly the names and versions that this component imports ----

    def _link(self) -> None:
        root = capi.component_linker_root(self._linker)
        try:
            for name in self._component.type.imports(self._world.engine):
                interface = name.split("@")[0]
                if interface == HOST_INTERFACE:
                    self._add_interface(root, name, {"submit": _submit}, {"wait": _wait}, {})
                else:
                    functions = wasi.FUNCTIONS.get(interface, {})
                    self._add_interface(
                        root,
                        name,
                        {n: f for n, f in functions.items() if n not in wasi.SUSPENDING},
                        {n: f for n, f in functions.items() if n in wasi.SUSPENDING},
                        wasi.RESOURCES.get(interface, {}),
                    )
        finally:
            capi.linker_instance_delete(root)
        _check(capi.component_linker_unknown_as_traps(self._linker, self._pointer))

    def _add_interface(
        self,
        root: int,
        name: str,
        functions: dict[str, Any],
        suspending: dict[str, Any],
        resources: dict[str, int],
    ) -> None:
        if not functions and not suspending and not resources:
            return
        instance = c_void_p()
        encoded = name.encode()
        _check(capi.linker_instance_add_instance(root, encoded, len(encoded), ctypes.byref(instance)))
        try:
            for resource, number in resources.items():
                destructor = capi.RESOURCE_DESTRUCTOR(self._drop_timer if number == wasi.POLLABLE else _drop_nothing)
                self._callbacks.append(destructor)
                resource_type = capi.resource_type_new_host(number)
                encoded = resource.encode()
                _check(
                    capi.linker_instance_add_resource(
                        instance, encoded, len(encoded), resource_type, capi.address(destructor), None, None
                    )
                )
                capi.resource_type_delete(resource_type)
            for table, wrap, add in (
                (functions, self._sync, capi.linker_instance_add_func),
                (suspending, self._async, capi.linker_instance_add_func_async),
            ):
                for function, body in table.items():
                    callback = wrap(body)
                    self._callbacks.append(callback)
                    encoded, ours = function.encode(), capi.address(callback)
                    in_c = self._in_c.get(body)
                    _check(add(instance, encoded, len(encoded), in_c or ours, ours if in_c else None, None))
        finally:
            capi.linker_instance_delete(instance)

    def _sync(self, body: wasi.Function) -> Any:
        def call(
            env: int,
            context: int,
            ty: int,
            args: int,
            count: int,
            results: int,
            nresults: int,
        ) -> int | None:
            guest = self._world.guest_of(context)
            try:
                body(guest, args, results)
            except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
                return guest.host_call_failed(e)
            return None

        return capi.COMPONENT_CALLBACK(call)

    def _async(self, body: wasi.Function) -> Any:
        ready_address = self._world.boundary.ready_address

        def call(  # noqa: PLR0913, PLR0917 - wasmtime's signature
            env: int,
            context: int,
            ty: int,
            args: int,
            count: int,
            results: int,
            nresults: int,
            error_out: int,
            continuation_out: int,
        ) -> None:
            guest = self._world.guest_of(context)
            continuation = capi.Continuation.from_address(continuation_out)
            continuation.callback = ready_address
            continuation.env = ctypes.addressof(guest.state)
            continuation.finalizer = None
            guest.state.ready = _READY
            try:
                body(guest, args, results)
            except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
                guest.state.ready = _READY
                c_void_p.from_address(error_out).value = guest.host_call_failed(e)

        return capi.COMPONENT_ASYNC_CALLBACK(call)

    def _drop_timer(self, env: int, context: int, rep: int) -> None:
        self._world.guest_of(context).timers.drop(rep)


def link(world: World, compiled: Compiled) -> Program:
    """Load a compiled module and link it."""
    if compiled.kind is ModuleKind.CORE:
        return CoreProgram(world, compiled)
    return ComponentProgram(world, compiled)


def _submit(guest: Guest, args: int, result: int) -> None:
    try:
        data = values.read_string(args).decode().encode("latin-1")
    except UnicodeEncodeError as e:
        raise MalformedSubmission(detail=f"code point U+{ord(e.object[e.start]):04X} stands for no byte") from e
    guest.take_submission(data)


def _wait(guest: Guest, args: int, result: int) -> None:
    second = args + capi.COMPONENT_VAL_BYTES
    guest.begin_wait(values.read_u64(args) & 0xFFFF_FFFF, values.read_u64(second), result)


def _drop_nothing(env: int, context: int, rep: int) -> None:
    """Other resources hold nothing on the host."""


def _check(error: int | None) -> None:
    if error:
        raise CorruptModule(detail=capi.take_error(error))


def _check_exports(module: wasmtime.Module) -> int:
    """The initial size of its memory."""
    exports = {export.name: export.type for export in module.exports}
    memory = exports.get("memory")
    if not isinstance(memory, wasmtime.MemoryType):
        raise CorruptModule(detail="it does not export its memory as `memory`")
    main = exports.get(MAIN)
    if not isinstance(main, wasmtime.FuncType) or main.params or [str(r) for r in main.results] != ["i32"]:
        raise CorruptModule(detail=f"it does not export `{MAIN}() -> i32`")
    return memory.limits.min * WASM_PAGE_BYTES
