"""Every call does what it says, on a real stack with the demo model, and each case notices a host that does nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import tartlet
from tartlet import Capabilities, LaunchSpec, Limits
from tartlet_common.abi import Op
from tartlet_common.errors.registry import TartletError
from tests.e2e.serving import Serving, client_of, serving
from tests.run_directory import run_directory
from tests.runtime.web.servers import Heard, Server, answer
from tests.runtime.web.servers import serving as serving_http
from tools.calls.cases import BY_CALL, BY_OP, PROGRAM, STUBS

ROOT = Path(__file__).resolve().parents[3]
SOURCE = tartlet.Source.from_directory(ROOT / PROGRAM)
MODEL = ROOT / "models" / "demo"
CASES = sorted({*BY_CALL.values(), *BY_OP.values(), "forward_with_mask"})
HOSTS = Capabilities(http=("127.0.0.1",))


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    adapters = {"TARTLET_WORKER_ADAPTERS": f"polite={MODEL / 'adapters' / 'polite'}"}
    flags = ("--model", str(MODEL), "--allow-http", "127.0.0.1")
    with run_directory() as directory, serving(directory, *flags, engine="torch", **adapters) as running:
        yield running


async def _answered(server: Server, heard: Heard, writer: asyncio.StreamWriter) -> None:
    server.go_on.set()
    await answer(server, heard, writer)


@asynccontextmanager
async def _web(case: str) -> AsyncIterator[str]:
    if not case.startswith("http"):
        yield ""
        return
    async with serving_http(_answered) as web:
        yield web.url


async def works(server: Serving, case: str, stub: Op | None, deadline_s: float) -> bool:
    """Whether a case ends well and its clients see what they must see of it."""
    try:
        return await _works(server, case, stub, deadline_s)
    except TartletError as e:  # the program ended before its client had said all
        print(e)  # noqa: T201 - why a case failed
        return False


async def _works(server: Serving, case: str, stub: Op | None, deadline_s: float) -> bool:
    async with client_of(server) as client, _web(case) as url:
        args = [case, uuid.uuid4().hex, url, str(int(stub)) if stub else ""]
        run = await client.run(
            spec=LaunchSpec(source=SOURCE, args=args, capabilities=HOSTS, limits=Limits(deadline_s=deadline_s))
        )
        if case == "receive":
            await client.send(run.program_id, "hello")
        outputs: dict[type, str] = {tartlet.Stdout: "", tartlet.Stderr: "", tartlet.Message: ""}
        expected_tokens = None
        async for event in run:
            if isinstance(event, tartlet.Stdout | tartlet.Stderr | tartlet.Message):
                outputs[type(event)] += event.data.decode()
            if outputs[tartlet.Message].startswith("expects") and expected_tokens is None:
                rows = (await client.state()).control["programs"]
                expected_tokens = [row["expected_tokens"] for row in rows if row["id"] == run.program_id]
                await client.send(run.program_id, "go on")
        assert run.ended is not None
        if not run.ended.success:
            print(run.ended.error)  # noqa: T201 - why a case failed
            return False
        seen = {
            "log": outputs[tartlet.Stdout] == "a printed line\n" and outputs[tartlet.Stderr] == "another\n",
            "send": outputs[tartlet.Message].strip() == "a message",
            "get_instance_id": outputs[tartlet.Message].strip() == run.program_id,
            "expect": expected_tokens == [12345],
            "continue_": run.ended.result == "the second run",
        }
        return seen.get(case, True)


@pytest.mark.parametrize("case", CASES)
async def test_a_call_does_what_it_says(server: Serving, case: str) -> None:
    assert await works(server, case, None, 50)


@pytest.mark.parametrize(("case", "op"), STUBS, ids=str)
async def test_a_case_fails_if_the_host_does_nothing(server: Serving, case: str, op: Op) -> None:
    assert not await works(server, case, op, 2)


def test_every_operation_and_every_call_of_the_paper_but_images_has_a_case() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / PROGRAM).glob("of_*.py"))
    assert set(BY_OP) == set(Op)
    assert {op for _, op in STUBS} == set(Op)
    assert len(BY_CALL) == 42 - 2 + 5
    assert [case for case in CASES if f"async def {case}(" not in source] == []
