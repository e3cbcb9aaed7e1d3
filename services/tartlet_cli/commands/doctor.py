"""`tartlet doctor`: checks this machine and a server, and says what to do about each problem."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from tartlet_cli.console import exits
from tartlet_cli.console.calls import connect
from tartlet_cli.console.options import json_option, server_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tartlet.model import RuntimeState

    Say: TypeAlias = Callable[[str], None]

_NEEDED = {"grpc": "all roles", "numpy": "all roles", "pydantic": "all roles", "wasmtime": "the runtime"}
_WORKER = ("torch", "safetensors", "tokenizers", "jinja2")
_LEAST_DISK_BYTES = 1 << 30
_NO_ENGINE = "A worker may still be loading its model: wait, or look into logs/worker.log in the run directory."
_LEAST_MEMORY_BYTES = 2 << 30
_FULL = 0.9
_WIDTH = 16
"""Columns of a finding's name."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: "ok", "warn" (some function is limited) or "fail", with a remedy unless it is "ok"."""

    name: str
    status: str
    found: str
    remedy: str = ""


@click.command()
@server_option
@json_option
def doctor(server: str | None, *, as_json: bool) -> None:
    """Check this machine and the server, and say what to do. The exit code is 3 if a check fails.

    A server that isn't running is a warning: `tartlet run` needs none.

    \b
    Examples:
      tartlet doctor
      tartlet doctor --json
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    from tartlet_cli.console.terminal import ProgressLine

    progress = ProgressLine()
    checks: list[Check] = []
    for check in _each(server, progress.show):
        checks.append(check)
        progress.clear()
        if not as_json:
            click.echo(f"{check.status:4}  {check.name.ljust(_WIDTH)}  {check.found}")
            if check.remedy:
                click.echo(f"      {' ' * _WIDTH}  -> {check.remedy}")
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    if any(check.status == "fail" for check in checks):
        raise SystemExit(exits.SYSTEM)


def _each(server: str | None, say: Say) -> Iterator[Check]:
    """Yield each finding as soon as it is known."""
    yield from machine(say)
    say("asking the server ...")
    yield from asyncio.run(serving(server))


def machine(say: Say) -> Iterator[Check]:
    """Checks that need no server; `say` is told what the next one waits for if that takes seconds."""
    version = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info >= (3, 11)
    yield Check("python", "ok" if fits else "fail", version, "" if fits else "Use Python 3.11 or later.")
    yield from _packages()
    yield from _device(say)
    yield _compiler()
    yield _component()
    yield from _directories()
    yield _memory()
    yield _addresses()
    yield _model()
    yield from _fast_path(say)


def _packages() -> Iterator[Check]:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    for name in missing:
        yield Check(f"package {name}", "fail", f"not installed; {_NEEDED[name]} needs it", "Run `make setup`.")
    if not missing:
        yield Check("packages", "ok", ", ".join(_NEEDED))
    missing = [name for name in _WORKER if importlib.util.find_spec(name) is None]
    if missing:
        yield Check(
            "torch engine", "warn", f"{', '.join(missing)} missing", "Install tartlet[worker], or use --engine fake."
        )
    else:
        yield Check("torch engine", "ok", ", ".join(_WORKER))


def _device(say: Say) -> Iterator[Check]:
    """Check the device that a worker started here would use; torch is asked, in its own process, only for a GPU."""
    device = os.environ.get("TARTLET_WORKER_DEVICE") or "cpu"
    if not device.startswith("cuda"):
        there = (
            "; this machine has a GPU: set TARTLET_WORKER_DEVICE=cuda to use it" if shutil.which("nvidia-smi") else ""
        )
        yield Check("device", "ok", device + there)
        return
    count = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    say("asking torch for GPUs ...")
    asked = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=False)
    number = device.partition(":")[2]
    if asked.stdout.strip().isdecimal() and (number or "0").isdecimal() and int(number or 0) < int(asked.stdout):
        yield Check("device", "ok", f"{device}, of {int(asked.stdout)}")
        yield from _gpu(device, say)
        return
    yield Check("device", "fail", f"{device}: torch finds no such GPU", "Set TARTLET_WORKER_DEVICE=cpu, or unset it.")
    if asked.stdout.strip() == "0":
        yield from _gpu(device, say)  # perhaps the driver's fault


def _gpu(device: str, say: Say) -> Iterator[Check]:
    """Check a GPU and the kernels that a worker would run on it; the worker's own module is asked."""
    from tartlet_cli.console.places import find_model
    from tartlet_common.errors.registry import CheckpointMissing

    command = [sys.executable, "-m", "tartlet_worker.torch_engine.gpu_checks", device]
    with contextlib.suppress(CheckpointMissing):  # the check of the model says so
        command.append(str(find_model(None)))
    say("trying the GPU's kernels ...")
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in asked.stdout.splitlines():
        if line.startswith("{"):  # libraries may print lines of their own
            yield Check(**json.loads(line))
    if asked.returncode:
        last = asked.stderr.strip().rpartition("\n")[2]
        yield Check("gpu", "fail", last, f"Run `{' '.join(command[1:])}` with this Python to see where it fails.")


def _compiler() -> Check:
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found:
        return Check("compiler", "ok", found)
    remedy = "Install gcc for faster host calls; all functions work without a compiler."
    return Check("compiler", "warn", "none: host calls go through ctypes, which is slower", remedy)


def _component() -> Check:
    from tartlet_common.config.paths import cache_dir

    built = sorted((cache_dir() / "guest").glob("*.wasm"), key=lambda path: path.stat().st_mtime)
    if built:
        return Check("guest component", "ok", str(built[-1]))
    return Check(
        "guest component",
        "warn",
        f"not built in {cache_dir()}",
        "Run `make setup`, or `python -m tartlet_runtime.guests.build`.",
    )


def _directories() -> Iterator[Check]:
    from tartlet.local import holder
    from tartlet_common.config.paths import cache_dir, check_socket, make_private, run_dir
    from tartlet_common.errors.registry import InvalidConfig, TartletError

    try:
        make_private(run_dir())
        check_socket(
            run_dir() / f"run-{os.getpid()}-xxxxxxxx" / "control.sock"
        )  # the longest path is that of a `tartlet run`
        process = holder(run_dir())
        yield Check("run directory", "ok", f"{run_dir()}, " + (f"in use by process {process}" if process else "free"))
    except InvalidConfig as e:
        yield Check("run directory", "fail", str(e.fields["detail"]), e.remedy)
    except (OSError, TartletError) as e:
        yield Check("run directory", "fail", str(e), "Set TARTLET_RUN_DIR to a directory that you own.")
    for name, path in (("run", run_dir()), ("cache", cache_dir())):
        there = next(p for p in (path, *path.parents) if p.exists())
        free = shutil.disk_usage(there).free
        enough = free >= _LEAST_DISK_BYTES
        found = f"{free / 2**30:.1f} GiB free at {there}"
        variable = f"TARTLET_{name.upper()}_DIR"
        yield Check(
            f"disk, {name}",
            "ok" if enough else "warn",
            found,
            "" if enough else f"Free disk space, or set {variable} to another directory.",
        )


def _memory() -> Check:
    import psutil

    free = psutil.virtual_memory().available
    if free >= _LEAST_MEMORY_BYTES:
        return Check("memory", "ok", f"{free / 2**30:.1f} GiB available")
    return Check("memory", "warn", f"{free / 2**30:.1f} GiB available", "Lower TARTLET_WORKER_KV_MEMORY_BYTES.")


def _addresses() -> Check:
    from tartlet_common.process.role import address_space

    limit = address_space()
    if limit is None:
        return Check("address space", "ok", "not limited")
    remedy = (
        "Lift the limit (`ulimit -v unlimited`): the runtime reserves terabytes of addresses, and uses few of them."
    )
    return Check("address space", "fail", f"{limit / 2**30:.1f} GiB", remedy)


def _model() -> Check:
    from tartlet_cli.console.places import find_model
    from tartlet_common.errors.registry import CheckpointMissing

    try:
        return Check("model", "ok", str(find_model(None)))
    except CheckpointMissing as e:
        return Check("model", "warn", str(e), "Give --model PATH, set TARTLET_MODEL, or use --engine fake.")


def _fast_path(say: Say) -> Iterator[Check]:
    """Check whether a worker started here would take the fast path on the CPU; the worker's own module is asked."""
    from tartlet_cli.console.places import find_model
    from tartlet_common.errors.registry import CheckpointMissing

    if importlib.util.find_spec("safetensors") is None:  # there is no torch engine here either
        return
    try:
        model = find_model(None)
    except CheckpointMissing:  # the check of the model says so
        return
    command = [sys.executable, "-m", "tartlet_worker.torch_engine.fast_path", str(model)]
    say("asking a worker which kernels it would use ...")
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        last = asked.stderr.strip().rpartition("\n")[2]
        yield Check("fast path", "warn", f"could not be found out: {last}", "Run `tartlet config` to see the settings.")
    elif asked.stdout.strip():
        remedy = "Decoding works without it, but takes longer."
        yield Check("fast path", "warn", "; ".join(asked.stdout.strip().splitlines()), remedy)
    else:
        yield Check("fast path", "ok", "taken")


def _budget(state: RuntimeState) -> Iterator[Check]:
    """Check how much of the memory of the runtime is taken; an older runtime doesn't tell."""
    if not state.memory_bytes:
        return
    taken = sum(state.memory_taken_bytes.values())
    uses = ", ".join(f"{use} {size >> 20}" for use, size in sorted(state.memory_taken_bytes.items()) if size >> 20)
    found = f"{taken >> 20} of {state.memory_bytes >> 20} MiB (by {state.memory_source}) taken: {uses}"
    if taken < state.memory_bytes * _FULL:
        yield Check("runtime memory", "ok", found)
        return
    remedy = "Launch fewer programs at once, name smaller limits (--max-memory), or give the runtime more memory."
    yield Check("runtime memory", "warn", found, remedy)


async def serving(server: str | None) -> list[Check]:
    """Checks of the runtime and what stands behind it."""
    from tartlet_common.errors.registry import TartletError

    try:
        async with connect(server) as client, asyncio.timeout(5):
            state = await client.state()
    except (TartletError, TimeoutError) as e:
        return [Check("runtime", "warn", str(e) or "no answer within 5 s", "Start a server with `tartlet serve`.")]
    checks = [
        Check("runtime", "ok", f"{client.address}: {state.running} of {state.capacity} programs, {state.boundary}")
    ]
    checks += _budget(state)
    if not state.control_connected:
        remedy = "The runtime connects again by itself once control runs; `tartlet serve` restarts control."
        return [*checks, Check("control", "fail", "the runtime is not connected to control", remedy)]
    checks.append(Check("control", "ok", "connected"))
    engines = state.control.get("engines", [])
    checks += [
        Check(f"adapter {name}", "warn", f"engine {engine['id']}: {why}", "Correct the list, or the directory.")
        for engine in engines
        for name, why in engine.get("refused", {}).items()
    ]
    ready = [engine for engine in engines if engine.get("state") == "ready"]
    if ready:
        return [*checks, Check("engines", "ok", f"{len(ready)} of {len(engines)} ready")]
    return [
        *checks,
        Check("engines", "fail", f"none of {len(engines)} is ready", _NO_ENGINE),
    ]
