"""Reads the table of docs/faults.md, and makes small things that break."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tartlet
from tartlet import LaunchSpec, Limits, Source
from tartlet_common.errors.registry import REGISTRY, TartletError
from tests.e2e.serving import PROGRAMS, Serving, command, environment, message, program, serving

TABLE = Path(__file__).parents[2] / "docs" / "faults.md"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a fault and its effect."""

    id: str
    ends_as: type[TartletError] | None  # None: no effect
    within_s: float
    again_s: float


def rows() -> list[Row]:
    """Returns the rows of the table.

    Raises:
        KeyError: a row names an error that isn't in the registry.
    """
    errors = {cls.__name__: cls for cls in REGISTRY.values()}
    found = []
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[3].replace(".", "").isdigit():
            ends_as = None if cells[2] == "no effect" else errors[cells[2]]
            found.append(Row(cells[0], ends_as, float(cells[3]), float(cells[4])))
    return found


def is_error(error: TartletError | None, wanted: type[TartletError]) -> bool:
    """Whether a program ended in this error: by itself, or in a traceback that ends in it."""
    return isinstance(error, wanted) or f".{wanted.__name__}: " in str(error)


def named(stderr: str) -> TartletError:
    """Returns the error that begins a line of standard error, after the role's name if a role printed it."""
    names = {cls.__name__: cls for cls in REGISTRY.values()}
    for found in re.finditer(r"^(?:tartlet \w+: )?(\w+)(?: \(\d+\))?:", stderr, re.MULTILINE):
        if found[1] in names:
            return names[found[1]]()
    raise AssertionError(stderr)


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def checkpoint(directory: Path, **changes: object) -> Path:
    """Makes a checkpoint directory with a truncated weight file."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes((1000).to_bytes(8, "little") + b'{"model.embed')
    return directory


def _on_a_small_disk(directory: Path, size: str = "256k") -> list[str] | None:
    """Returns a prefix for a command that then sees a small file system at `directory`.

    None if this user may not mount one on this machine.
    """
    script = f'mount -t tmpfs -o size={size},mode=700 tmpfs "$0" && exec "$@"'
    for unshare in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        prefix = [*unshare, "sh", "-c", script, str(directory)]
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
                return prefix
    return None


@contextlib.contextmanager
def with_a_disk_of_its_own(server: Serving) -> Iterator[Serving]:
    """Yields a server with its journals on a small file system, or `server` if none can be mounted."""
    with tempfile.TemporaryDirectory(prefix="tt-") as made:
        directory, journals = Path(made), Path(made) / "journals"
        journals.mkdir(mode=0o700)
        prefix = _on_a_small_disk(journals)
        if prefix is None:
            warnings.warn("no small disk can be mounted here: a full one is played by a limit", stacklevel=2)
            yield server
            return
        with serving(directory, prefix=prefix) as other:
            other.small_disk = Path(f"/proc/{other.pid('runtime')}/root") / journals.relative_to("/")
            yield other


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fills a file system during the block."""
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert shutil.disk_usage(disk).free == 0
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def no_file_grows(pid: int) -> Iterator[None]:
    """Forbids a process to enlarge files during the block, so that its writes fail nearly as on a full disk."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def stepped_clock(directory: Path) -> tuple[dict[str, str], Path]:
    """Returns an environment, and a file with the seconds (int64) by which its wall clocks are ahead."""
    library, offset = directory / "stepped_clock.so", directory / "offset"
    offset.write_bytes((0).to_bytes(8, "little", signed=True))
    source = Path(__file__).with_name("stepped_clock.c")
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True, capture_output=True)
    return {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(offset)}, offset


def ends_under_a_stepped_clock(directory: Path, env: dict[str, str], offset: Path) -> TartletError | None:
    """Steps the clock of a server of its own, and returns the error of a program that runs meanwhile."""
    with serving(directory, **env) as stepped, tartlet.Client(stepped.address) as other:
        run = other.run(spec=LaunchSpec(source=program("holder"), limits=Limits(deadline_s=30)))
        events = iter(run)
        assert next(events).text == "ready\n"  # type: ignore[union-attr]
        began_s = next(info.started_unix_s for info in other.list())
        for step_s in (3600, -3600, 0):
            with offset.open(
                "r+b"
            ) as file:  # in place: a process that reads the mapping of a truncated file dies of SIGBUS
                file.write(step_s.to_bytes(8, "little", signed=True))
            late = other.launch(Source.python("def main():\n    pass\n"))
            (info,) = [i for i in other.list(ended=True) if i.program_id == late.program_id]
            assert abs(info.started_unix_s - began_s - step_s) < 60  # the processes see the step
            other.send(run.program_id, "on")
            assert isinstance(next(events), tartlet.Message)
        other.send(run.program_id, "stop")
        return run.wait().error


async def killed(server: Serving, client: tartlet.AsyncClient, role: str) -> TartletError | None:
    """Returns the error of a program that holds pages when a role is killed."""
    run = await client.run(program("holder"))
    events = aiter(run)
    assert await message(events) == "ready\n"
    server.kill(role)
    try:
        async for _ in events:
            pass
    except TartletError as e:
        return e
    assert run.ended is not None
    return run.ended.error


async def thought(
    server: Serving,
    client: tartlet.AsyncClient,
    *args: str,
    kills: int = 0,
    first: int = 0,
    role: str = "worker",
    how: signal.Signals = signal.SIGKILL,
) -> list[str] | TartletError:
    """Returns what a program with three branches generates while roles are killed, or the error in which it ends.

    A role is killed in each of so many turns from the first one named.
    """
    run = await client.run(program("thinker"), [*args])
    events = aiter(run)
    said = [await message(events)]
    for turn in range(4):
        await client.send(run.program_id, "on")
        if first <= turn < first + kills:
            await asyncio.sleep(0.02 * turn)
            serves = f"{role} serves"
            count = server.text().count(serves)
            os.kill(server.pid(role), how)
            await asyncio.to_thread(server.until, serves, count + 1)
        try:
            said.append(await message(events))
        except (StopAsyncIteration, TartletError, AssertionError):
            break
    if run.ended is None:
        await client.send(run.program_id, "stop")
    ended = await run.wait()
    return said if ended.error is None else ended.error


async def unaffected(server: Serving, client: tartlet.AsyncClient, **how: Any) -> TartletError | None:
    """Returns the error in which a program ends while roles are killed; None: it thinks as when undisturbed."""
    undisturbed = await thought(server, client)
    found = await thought(server, client, **how)
    assert isinstance(found, TartletError) or found == undisturbed
    return found if isinstance(found, TartletError) else None


async def without_its_client(server: Serving, client: tartlet.AsyncClient, how: signal.Signals) -> TartletError | None:
    """Returns the error of a program whose `tartlet run` gets a signal in mid-stream."""
    process = await asyncio.create_subprocess_exec(
        *command("run", "--server", server.address, str(PROGRAMS / "endless.py")),
        env=environment(server.run_dir),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert await process.stdout.read(1)
    ids = [info.program_id for info in await client.list() if info.name == "endless.py"]
    process.send_signal(how)
    await process.communicate()
    while True:
        for info in await client.list(ended=True):
            if info.program_id in ids and info.state == "failed":
                return info.error
        await asyncio.sleep(0.02)
