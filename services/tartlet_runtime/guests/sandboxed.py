"""Programs in the sandbox: Python source in the generic component, and uploaded core modules."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict

from tartlet_common.bundles.checking import check_bundle
from tartlet_common.bundles.layout import guest_text, is_bundle
from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.errors.registry import InternalError, InvalidSource, ProgramFailed, StartFailed, TartletError
from tartlet_protos import common_pb2
from tartlet_runtime.abi.guest import Delivery, Guest, GuestOutcome, Host, Phase, clip_traceback
from tartlet_runtime.abi.limits import PYTHON_BYTES, ProgramLimits
from tartlet_runtime.budget.growth import START_BYTES
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.budget.turns import Turns
from tartlet_runtime.guests.build import earlier_guest, python_guest
from tartlet_runtime.guests.compiled import CompiledSources, Key
from tartlet_runtime.program.program import MakeGuest, Program
from tartlet_runtime.program.spec import ProgramSpec
from tartlet_runtime.wasm import (
    AotCache,
    GuestClock,
    GuestLimits,
    GuestRandom,
    HostConfig,
    LinkedModule,
    QuietHooks,
    SystemClock,
    SystemRandom,
    WaitRequest,
    WasmHost,
)
from tartlet_runtime.wasm.compiling.aot import LEAST_COMPILER_BYTES
from tartlet_runtime.wasm.compiling.engine_flags import flags_digest

log = logging.getLogger(__name__)

_Source = common_pb2.Source
_MODULES_KEPT = 256
_CHECK_SOURCE = """
import sys
from inferlet._running.guest import check
def main():
    return check(sys.argv[1], sys.argv[2]) or None
"""


class _Hooks:
    """The program's methods, in the form that the Wasm host calls."""

    __slots__ = ("_wait", "on_output", "on_sleep", "on_submit")

    def __init__(self, host: Host) -> None:
        self.on_submit = host.on_submit
        self.on_output = host.on_output
        self.on_sleep = host.on_sleep
        self._wait = host.on_wait

    def on_wait(self, request: WaitRequest) -> Delivery | None:
        return self._wait(request.max_records, request.timeout_us)


class WasmGuest:
    """One fiber; `close` frees it in the background."""

    __slots__ = ("deliver", "fiber", "step", "wake")

    def __init__(self, wasm: WasmHost, module: LinkedModule, program: Program, code: bytes = b"") -> None:
        """Create and start it; it computes from the first `step` on. `code`: of a Python program that is compiled.

        Raises:
            Overloaded: the pool is full.
        """
        spec = program.spec
        self.fiber = wasm.create(
            module,
            hooks=_Hooks(program),
            limits=guest_limits(spec.limits),
            clock=GuestClock(program.clock_start_ns) if spec.durable else SystemClock(),
            random=GuestRandom(spec.seed) if spec.durable or spec.seeded else SystemRandom(),
        )
        is_python = spec.language == _Source.PYTHON
        self.fiber.start(guest_text(spec.source) if is_python else "", spec.filename, spec.args, code)
        self.step = self.fiber.step
        self.deliver = self.fiber.deliver
        self.wake = self.fiber.wake

    @property
    def outcome(self) -> GuestOutcome | None:
        """How the guest ended, or None."""
        outcome = self.fiber.outcome
        if outcome is None:
            return None
        if outcome.cause is not None and not isinstance(outcome.cause, TartletError):
            log.error("a hook failed", exc_info=outcome.cause)
        error = outcome.error
        if isinstance(error, ProgramFailed):
            error = ProgramFailed(traceback=clip_traceback(str(error.fields.get("traceback", outcome.text))))
        return GuestOutcome("" if error else outcome.text, error)

    @property
    def sleep_us(self) -> int:
        """Length of the open sleep, microseconds."""
        return self.fiber.sleep_us

    def pause(self, *, paused: bool) -> None:
        """Do nothing: the driver stops stepping the guest."""

    def close(self, error: TartletError | None) -> None:
        """End the guest wherever it is."""
        self.fiber.kill(error.name if error else "ended")


def guest_limits(limits: ProgramLimits) -> GuestLimits:
    """Return the sandbox's part of a program's limits."""
    return GuestLimits(
        memory_bytes=limits.memory_bytes, reserved_bytes=limits.reserved_bytes, cpu_burst_s=limits.cpu_slice_s
    )


class WasmGuests:
    """The Wasm host, the Python component and the modules in use."""

    def __init__(self, settings: RuntimeSettings, ledger: Ledger) -> None:
        """Start the host; without a built Python component only other guests run. Memory is taken from `ledger`.

        Raises:
            StartFailed: the host can't start.
        """
        usual = HostConfig()
        config = HostConfig(
            max_guests=settings.capacity,
            max_spares=max(usual.min_spares, min(settings.capacity, usual.max_spares)),
            max_memory_bytes=settings.memory_bytes,
            boundary=settings.boundary,
            cache_dir=settings.cache_dir,
        )
        aot = AotCache(
            settings.cache_dir,
            max_wasm_bytes=settings.source_bytes,
            compile_timeout_s=settings.compile_timeout_s,
            ledger=ledger,
        )
        self._ledger = ledger
        self.host = WasmHost(config, aot=aot, ledger=ledger)
        self._modules: OrderedDict[str, LinkedModule] = OrderedDict()
        self._checked: OrderedDict[str, None] = OrderedDict()  # digests of archives
        self._python: LinkedModule | None = None
        self._compiled: CompiledSources | None = None
        self._earlier: dict[str, LinkedModule] = {}  # Python components of earlier releases, by digest
        self._python_error: TartletError | None = None
        self._flags = flags_digest()
        self._compiling = Turns(1)  # so that no tenant's modules keep another tenant's from the compilers
        try:
            if settings.memory_bytes < PYTHON_BYTES:
                told = f"memory_bytes is {settings.memory_bytes}, and Python needs at least {PYTHON_BYTES >> 20} MiB"
                raise StartFailed(role="Python", detail=told)
            self._python = self.host.load(python_guest(settings.cache_dir))
            self._python.shared_bytes = PYTHON_BYTES - START_BYTES
            self._compiled = CompiledSources(self.host, self._python, ledger)
        except StartFailed as e:
            self._python_error = e
            log.warning("Python programs can't run: %s", e)

    @property
    def component(self) -> str:
        """Digest of the Python component, "" if there is none."""
        return self._python.digest if self._python is not None else ""

    def identity(self, spec: ProgramSpec) -> str:
        """Return what a journal of this program can be replayed with: component or module, and engine flags."""
        if spec.language == _Source.NATIVE:
            return ""
        digest = self.component if spec.language == _Source.PYTHON else spec.digest
        return f"{digest}-{self._flags}"

    @property
    def boundary(self) -> str:
        """Name of the boundary in use: "shim" or "ctypes"."""
        return self.host.boundary.name

    def ready(self, spec: ProgramSpec) -> MakeGuest | None:
        """Return what makes the program's guest, or None if its module must be compiled first.

        Raises:
            StartFailed: it is a Python program and there is no Python component.
            InvalidSource: its source isn't UTF-8.
            InvalidBundle, BundleTooLarge, NativePackage: its archive is refused.
        """
        if spec.language == _Source.PYTHON:
            self._check(spec)
            return self._maker(self._python_module(), self._code(spec))
        module = self._modules.get(spec.digest)
        if module is None:
            return None
        self._modules.move_to_end(spec.digest)
        return self._maker(module)

    def recorded(self, spec: ProgramSpec, component: str) -> MakeGuest | None:
        """Return what makes the guest of a program that began with `component`; None as from `ready`.

        A Python program goes on with the component that it began with: this release's, or an earlier one that the
        cache still has.

        Raises:
            InvalidSource: there is no such component here.
            MemoryBudgetExceeded: the process has too little memory for the earlier component.
            StartFailed, InvalidBundle, BundleTooLarge, NativePackage: as from `ready`.
        """
        here = self.identity(spec)
        if component == here:
            return self.ready(spec)
        digest, _, flags = component.partition("-")
        if spec.language == _Source.PYTHON and flags == self._flags:
            module = self._earlier.get(digest) or self._load_earlier(digest)
            if module is not None:
                self._check(spec)
                return self._maker(module)
        raise InvalidSource(detail=f"the journal belongs to {component}, this runtime has {here}")

    def _load_earlier(self, digest: str) -> LinkedModule | None:
        compiled = earlier_guest(digest, self.host.config.cache_dir)
        if compiled is None:
            return None
        size = compiled.path.stat().st_size
        self._ledger.take(Use.MODULES, size)
        try:
            module = self.host.load(compiled)
        except BaseException:
            self._ledger.give(Use.MODULES, size)
            raise
        module.shared_bytes = PYTHON_BYTES - START_BYTES
        self._earlier[digest] = module
        log.info("programs of the Python component %s of an earlier release go on", digest[:12])
        return module

    async def prepare(self, spec: ProgramSpec) -> MakeGuest:
        """Compile (in a process of its own) and load a module.

        Raises:
            SourceTooLarge, CorruptModule, CompileTimeout, DiskFull: as they say.
            MemoryBudgetExceeded: the process has too little memory to compile or to load it.
        """
        if self._ledger.free_bytes < 2 * LEAST_COMPILER_BYTES:
            self.host.drop_spares()
        async with self._compiling.turn(spec.tenant):
            compiled = await self.host.aot.compile_async(spec.source)
        module = self._modules.get(spec.digest)
        if module is not None:  # another launch that waited for the same compilation was first
            return self._maker(module)
        size = compiled.path.stat().st_size
        while self._modules and (len(self._modules) >= _MODULES_KEPT or size > self._ledger.free_bytes // 2):
            self.host.unload(self._modules.popitem(last=False)[1])
        self._ledger.take(Use.MODULES, size)  # programs that run hold their modules too
        try:
            module = self.host.load(compiled)
        except BaseException:
            self._ledger.give(Use.MODULES, size)
            raise
        weakref.finalize(module, self._ledger.give, Use.MODULES, size)
        self._modules[spec.digest] = module
        return self._maker(module)

    def expect(self, spec: ProgramSpec, asked_s: float) -> None:
        """Count a program that control has accepted, so that spares are kept for as many.

        Args:
            spec: the program.
            asked_s: monotonic seconds at which the client's request came.
        """
        is_python = spec.language == _Source.PYTHON
        module = self._python if is_python else self._modules.get(spec.digest)
        if module is not None and spec.language != _Source.NATIVE:
            self.host.expect(module, asked_s)

    async def check_python(self, source: bytes, filename: str, limit_s: float) -> None:
        """Compile a Python source where it would run, so that it is the guest's own version that judges.

        Raises:
            InvalidSource: it has a syntax error, or takes longer than a program may compute.
            InvalidBundle, BundleTooLarge, NativePackage: the source is an archive that is refused.
        """
        text = check_text(source)
        limits = GuestLimits(cpu_burst_s=limit_s)
        guest = self.host.create(self._python_module(), hooks=QuietHooks(), limits=limits)
        try:
            guest.start(_CHECK_SOURCE, "validate.py", [text, filename])
            while guest.step() is Phase.READY:  # noqa: ASYNC110 - it computes; the loop gets its turns between
                await asyncio.sleep(0)
        finally:  # also when the caller hangs up
            guest.kill()
        outcome = guest.outcome
        if outcome is None or outcome.error is not None:
            raise InvalidSource(detail=str(outcome.error) if outcome else "it could not be compiled")
        if outcome.text and outcome.text != "None":
            raise InvalidSource(detail=outcome.text)

    def _check(self, spec: ProgramSpec) -> None:
        """Check a source, an archive once."""
        if spec.digest in self._checked:
            self._checked.move_to_end(spec.digest)
            return
        check_text(spec.source)
        if is_bundle(spec.source):
            self._checked[spec.digest] = None
            while len(self._checked) > _MODULES_KEPT:
                self._checked.popitem(last=False)

    def begin_step(self, guest: Guest) -> None:
        """Let a sandboxed guest compute on another thread."""
        if isinstance(guest, WasmGuest):
            self.host.begin_step(guest.fiber)

    def end_step(self, guest: Guest) -> None:
        """Wait until the other thread has finished the guest's slice."""
        if isinstance(guest, WasmGuest):
            self.host.end_step(guest.fiber)

    def reap(self) -> None:
        """Begin to free what ended guests left."""
        self.host.reap()

    def tend(self) -> bool:
        """Prepare one guest ahead of its launch (a few ms). Returns False if there are enough."""
        return self.host.tend(self._python)

    def close(self) -> None:
        """End all guests."""
        if self._compiled is not None:
            self._compiled.close()
        self.host.aot.close()
        self.host.close()

    def _python_module(self) -> LinkedModule:
        if self._python is None:
            raise self._python_error or InternalError(detail="no Python component")
        return self._python

    def _code(self, spec: ProgramSpec) -> bytes:
        """Return the code of a program without a journal, if the program was launched before.

        A program with a journal compiles itself: whoever runs it again must find each object at the same address.
        """
        if spec.durable or self._compiled is None:
            return b""
        key = Key(spec.tenant, spec.digest, spec.filename)
        return self._compiled.code(key, lambda: guest_text(spec.source))

    def _maker(self, module: LinkedModule, code: bytes = b"") -> MakeGuest:
        return lambda program: WasmGuest(self.host, module, program, code)


def check_text(source: bytes) -> str:
    """Return Python source as the guest takes it: text, or an archive with one character for each byte.

    Raises:
        InvalidSource: it isn't UTF-8, or has a NUL.
        InvalidBundle, BundleTooLarge, NativePackage: the source is an archive that is refused.
    """
    if is_bundle(source):
        check_bundle(source)
        return guest_text(source)
    try:
        text = source.decode()
    except UnicodeDecodeError as e:
        raise InvalidSource(detail=f"not UTF-8: {e}") from e
    if "\0" in text:
        raise InvalidSource(detail="it contains a NUL character")
    return text
