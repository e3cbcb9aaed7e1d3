"""Idempotency keys while control is killed and started again: real roles, two runtimes, one program."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import wasmtime

import tartlet
from tartlet_common.abi import Flag, Op, Writer, u32
from tartlet_common.errors.registry import ProgramFailed, ProgramKilled, Unavailable
from tests.e2e.cluster import Cluster, cluster


def _module(body: str, submission: bytes = b"") -> tartlet.Source:
    """A core Wasm program; its `$hear` waits for a message."""
    data = "".join(f"\\{byte:02x}" for byte in submission)
    text = f"""(module
        (import "tartlet" "submit" (func $submit (param i32 i32)))
        (import "tartlet" "wait" (func $wait (param i32 i32 i32 i64) (result i32)))
        (memory (export "memory") 3) (data (i32.const 0) "{data}")
        (func $hear (drop (call $wait (i32.const 65536) (i32.const 65536) (i32.const 0) (i64.const -1))))
        (func (export "tartlet_main") (result i32) {body}))"""
    return tartlet.Source(bytes(wasmtime.wat2wasm(text)), tartlet.Language.WASM, "program.wasm")


def _holds_pages() -> tartlet.Source:
    """Allocates two pages and waits without end."""
    writer = Writer()
    writer.add(Op.ALLOC_KVPAGE, ticket=1, flags=Flag.AWAIT, payload=u32([0, 1]))
    submission = writer.finish()
    calls = f"(call $submit (i32.const 0) (i32.const {len(submission)})) (call $hear)"
    return _module(f"{calls} (call $hear) (i32.const 0)", submission)


WAITS = _module("(call $hear) (i32.const 0)")
FAILS = _module("(i32.const 1)")


def _client(made: Cluster, number: int) -> tartlet.AsyncClient:
    return tartlet.AsyncClient(made.runtimes[number], control=made.control, tls=made.identity("client"))


async def _states(made: Cluster) -> dict[str, str]:
    """Returns every program that either runtime has or had."""
    async with _client(made, 0) as client:
        return {info.program_id: info.state for info in await client.list(ended=True)}


async def test_a_launch_that_control_dies_over_starts_one_program(run_dir: Path) -> None:
    """Kills control between a launch and its answer; meanwhile, clients repeat the launch at both runtimes."""
    spec = tartlet.LaunchSpec(source=WAITS, idempotency_key="once")
    with cluster(run_dir, runtimes=2) as made:
        async with asyncio.timeout(90), _client(made, 0) as one, _client(made, 1) as two:
            assert await one.validate(WAITS) == await two.validate(
                WAITS
            )  # compiled already, so that the runtime passes a launch on at once
            made.roles["control"].process.send_signal(
                signal.SIGSTOP
            )  # the runtime accepts the launch and answers nothing
            launches = [asyncio.create_task(c.launch(spec=spec)) for c in (one, one)]
            await asyncio.sleep(0.5)
            assert not any(launch.done() for launch in launches)
            made.roles["control"].kill()
            made.start_control()
            launches += [asyncio.create_task(c.launch(spec=spec)) for c in (two, one)]
            program_id, *others = [(await launch).program_id for launch in launches]
            assert set(others) == {program_id}
            assert await _states(made) == {program_id: "running"}
            run = await two.attach(program_id)
            await one.kill(program_id)
            assert isinstance((await run.wait()).error, ProgramKilled)


async def test_a_key_names_its_program_after_a_restart_however_that_ended(run_dir: Path) -> None:
    """Repeats three launches at the other runtime: of a running, an ended, and a program that holds pages."""
    sources = {"goes on": WAITS, "had failed": FAILS, "had pages": _holds_pages()}
    specs = {key: tartlet.LaunchSpec(source=source, idempotency_key=key) for key, source in sources.items()}
    with cluster(run_dir, runtimes=2) as made:
        async with asyncio.timeout(90), _client(made, 0) as one, _client(made, 1) as two:
            before = {key: (await one.launch(spec=spec)).program_id for key, spec in specs.items()}
            failed = await (await one.attach(before["had failed"])).wait()
            assert isinstance(failed.error, ProgramFailed)
            while not any(info.pages for info in await one.list()):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.05)
            made.roles["control"].kill()
            made.start_control()
            after = {key: (await two.launch(spec=spec)).program_id for key, spec in specs.items()}
            assert after == before
            states = await _states(made)
            assert states == dict(zip(before.values(), ("running", "failed", "running"), strict=True))
            while not any(info.pages for info in await one.list()):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.05)
            for key in ("goes on", "had pages"):
                await two.kill(before[key])  # found, although control is new


async def test_a_launch_with_a_key_is_sent_again_when_its_runtime_dies(run_dir: Path) -> None:
    spec = tartlet.LaunchSpec(source=WAITS, idempotency_key="k")
    with cluster(run_dir, runtimes=1) as made:
        async with asyncio.timeout(90), _client(made, 0) as client:
            await client.list()  # connected
            made.roles["runtime0"].process.send_signal(signal.SIGSTOP)  # the runtime doesn't read the launch
            keyed = asyncio.create_task(client.launch(spec=spec))
            plain = asyncio.create_task(client.launch(WAITS))
            await asyncio.sleep(0.3)
            made.roles["runtime0"].kill()
            made.start_runtime(0)
            accepted = await keyed
            (failed,) = await asyncio.gather(plain, return_exceptions=True)
            assert isinstance(failed, Unavailable)  # the client can't know whether the program runs
            assert (await _states(made))[accepted.program_id] == "running"
            await client.kill(accepted.program_id)


async def test_a_program_without_commands_whose_end_nobody_was_told_ends_after_runtime_and_control_died(
    run_dir: Path,
) -> None:
    """It has only said something, so the next control has nothing to free for it, and no answer to give."""
    writer = Writer()
    writer.add(Op.SEND, payload=b"said")
    submission = writer.finish()
    says = _module(f"(call $submit (i32.const 0) (i32.const {len(submission)})) (i32.const 0)", submission)
    with cluster(run_dir, runtimes=1) as made:
        async with asyncio.timeout(90), _client(made, 0) as client:
            program_id = (await client.launch(says)).program_id
            while await _states(made) != {program_id: "succeeded"}:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.05)
            for role in ("runtime0", "control"):
                made.roles[role].kill()
            made.start_control()
            made.start_runtime(0)
            run = await client.attach(program_id)
            ended = await run.wait()
            assert (ended.success, ended.error) == (True, None)
            assert await _states(made) == {program_id: "succeeded"}
