"""A component, linked to `submit`, `wait` and the allow-listed part of WASI."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_void_p
from typing import Any

import wasmtime
from wasmtime.component import Component

from tartlet_common.errors.registry import CorruptModule, MalformedSubmission
from tartlet_runtime.wasm.boundary import capi, values
from tartlet_runtime.wasm.compiling.aot import Compiled, ModuleKind
from tartlet_runtime.wasm.linking import wasi
from tartlet_runtime.wasm.linking.linked_module import Instance, LinkedModule, ModuleHost, check

HOST_INTERFACE = "tartlet:inferlet/host"
PREPARE = b"prepare"
RUN = b"run"
_READY = 1


class ComponentModule(LinkedModule):
    """A component of the world `tartlet:inferlet/inferlet`, with the allow-listed WASI."""

    kind = ModuleKind.COMPONENT

    def __init__(self, host: ModuleHost, compiled: Compiled) -> None:
        """Load and link.

        Raises:
            CorruptModule: it is no component of our host.
        """
        self.digest = compiled.digest
        self._host = host
        self._callbacks: list[Any] = []
        self._in_c = {_submit: host.boundary.submit_string_address, _wait: host.boundary.wait_string_address}
        try:
            self._component = Component.deserialize_file(host.engine, str(compiled.path))
        except wasmtime.WasmtimeError as e:
            raise CorruptModule(detail=str(e)) from e
        self._pointer = capi.address(self._component.ptr())
        self._linker: int = capi.component_linker_new(capi.address(host.engine.ptr()))
        weakref.finalize(self, capi.component_linker_delete, self._linker)
        self._link()
        self._run_index = capi.component_export_index(self._pointer, None, RUN, len(RUN))
        self._prepare_index = capi.component_export_index(self._pointer, None, PREPARE, len(PREPARE))
        self.has_prepare = bool(self._prepare_index)
        if not self._run_index:
            raise CorruptModule(detail="the component does not export `run`")

    def begin_instance(self, guest: Instance) -> int:
        """Instantiate."""
        guest.instance = (ctypes.c_uint64 * 2)()
        future: int = capi.component_linker_instantiate_async(
            self._linker, guest.context, self._pointer, guest.instance, ctypes.byref(guest.error)
        )
        return future

    def begin_prepare(self, guest: Instance) -> int | None:
        """Call `prepare()`, if the component has it."""
        if not self.has_prepare:
            return None
        function = self._function(guest, self._prepare_index)
        guest.call_buffers = (function,)
        future: int = capi.component_func_call_async(
            function, guest.context, None, 0, None, 0, ctypes.byref(guest.error)
        )
        return future

    def begin_call(self, guest: Instance) -> int:
        """Call `run(source, filename, args, code)`."""
        function = self._function(guest, self._run_index)
        texts = guest.arguments
        buffers = [ctypes.create_string_buffer(text, len(text) or 1) for text in texts]
        args = (capi.ComponentVal * len(texts))()
        for cell, text, buffer in zip(args, texts, buffers, strict=True):
            cell.kind, cell.a, cell.b = values.STRING, len(text), ctypes.addressof(buffer)
        guest.results = capi.ComponentVal()
        guest.call_buffers = (function, args, buffers)
        future: int = capi.component_func_call_async(
            function,
            guest.context,
            args,
            len(texts),
            ctypes.byref(guest.results),
            1,
            ctypes.byref(guest.error),
        )
        return future

    @staticmethod
    def _function(guest: Instance, index: int) -> Any:
        function = (ctypes.c_uint64 * 8)()
        found = capi.component_instance_get_func(guest.instance, guest.context, index, function)
        assert found
        return function

    # ---- linking: exactly the names and versions that this component imports ----

    def _link(self) -> None:
        root = capi.component_linker_root(self._linker)
        try:
            for name in self._component.type.imports(self._host.engine):
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
        check(capi.component_linker_unknown_as_traps(self._linker, self._pointer))

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
        check(capi.linker_instance_add_instance(root, encoded, len(encoded), ctypes.byref(instance)))
        try:
            for resource, number in resources.items():
                destructor = capi.RESOURCE_DESTRUCTOR(self._drop_timer if number == wasi.POLLABLE else _drop_nothing)
                self._callbacks.append(destructor)
                resource_type = capi.resource_type_new_host(number)
                encoded = resource.encode()
                check(
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
                    check(add(instance, encoded, len(encoded), in_c or ours, ours if in_c else None, None))
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
            guest = self._host.guest_of(context)
            try:
                body(guest, args, results)
            except Exception as e:  # noqa: BLE001 - must not leave a ctypes callback
                return guest.host_call_failed(e)
            return None

        return capi.COMPONENT_CALLBACK(call)

    def _async(self, body: wasi.Function) -> Any:
        ready_address = self._host.boundary.ready_address

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
            guest = self._host.guest_of(context)
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
        self._host.guest_of(context).timers.drop(rep)


def _submit(guest: Instance, args: int, result: int) -> None:
    try:
        data = values.read_string(args).decode().encode("latin-1")
    except UnicodeEncodeError as e:
        raise MalformedSubmission(detail=f"code point U+{ord(e.object[e.start]):04X} stands for no byte") from e
    guest.take_submission(data)


def _wait(guest: Instance, args: int, result: int) -> None:
    second = args + capi.COMPONENT_VAL_BYTES
    guest.begin_wait(values.read_u64(args) & 0xFFFF_FFFF, values.read_u64(second), result)


def _drop_nothing(env: int, context: int, rep: int) -> None:
    """Other resources hold nothing on the host."""
