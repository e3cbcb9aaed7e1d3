"""Code of programs that run again: each run says and shows what it would without, and only whose code is its own."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.bundles.layout import guest_text
from tartlet_protos import programs_pb2
from tartlet_runtime.budget.ledger import Ledger, Use
from tartlet_runtime.guests import compiled
from tartlet_runtime.guests.compiled import CompiledSources, Key
from tartlet_runtime.wasm import Compiled, FiberOutcome, HostConfig, LinkedModule, Phase, QuietHooks, WasmHost
from tests.runtime.guests.test_wasm_programs import run_program
from tests.runtime.harness import running

_Event = programs_pb2.ProgramEvent
CHAT = (Path(__file__).parents[3] / "inferlets/std/openai_chat.py").read_text("utf-8")
FAILS = 'def inner(x):\n    return 1 / (x - x)\n\n\ndef main(args):\n    return inner(float(args[0])) + "é"\n'
ARCHIVED = {
    "main.py": "import helper\ndef main():\n    return helper.told()\n",
    "helper.py": "def told():\n    raise KeyError('here')\n",
}


@pytest.fixture(scope="module")
def host(cache_dir: Path) -> Iterator[WasmHost]:
    with WasmHost(HostConfig(max_guests=8, cache_dir=cache_dir, warm_memory_bytes=1 << 14)) as opened:
        yield opened


@pytest.fixture(scope="module")
def python(host: WasmHost, python_component: Compiled) -> LinkedModule:
    return host.load(python_component)


class Cache:
    """What a runtime keeps, and launches that ask for code."""

    def __init__(self, host: WasmHost, python: LinkedModule, bound: int = 1 << 30, **options: Any) -> None:
        self.ledger = Ledger(bound)
        self.sources = CompiledSources(host, python, self.ledger, **options)

    def launch(self, source: bytes, filename: str = "user.py", tenant: str = "t") -> bytes:
        """What one launch gets."""
        key = Key(tenant, hashlib.sha256(source).hexdigest(), filename)
        return self.sources.code(key, lambda: guest_text(source))

    async def code(self, source: bytes, filename: str = "user.py", tenant: str = "t") -> bytes:
        """What the last of several launches gets."""
        for _ in range(2):
            assert self.launch(source, filename, tenant) == b""
        if self.sources._at_work is not None:
            await self.sources._at_work
        return self.launch(source, filename, tenant)


def archive(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as written:
        for name, text in files.items():
            written.writestr(name, text)
    return data.getvalue()


def ran(host: WasmHost, python: LinkedModule, text: str, *args: str, code: bytes = b"") -> tuple[FiberOutcome, int]:
    """How a program ends, and the nanoseconds that its guest computed."""
    guest = host.create(python, hooks=QuietHooks())
    guest.start(text, "user.py", args, code)
    while guest.step() is Phase.READY:
        pass
    assert guest.outcome is not None
    return guest.outcome, guest.cpu_ns


@pytest.mark.parametrize("source", [FAILS.encode(), archive(ARCHIVED)], ids=["text", "archive"])
async def test_a_failure_shows_the_same_lines(host: WasmHost, python: LinkedModule, source: bytes) -> None:
    code = await Cache(host, python).code(source)
    assert code
    plain, _ = ran(host, python, guest_text(source), "3")
    quick, _ = ran(host, python, guest_text(source), "3", code=code)
    assert plain.text == quick.text
    assert ("return 1 / (x - x)" if source == FAILS.encode() else "raise KeyError('here')") in quick.text


async def test_code_depends_on_the_source_and_its_name_alone(host: WasmHost, python: LinkedModule) -> None:
    first = await Cache(host, python).code(CHAT.encode())
    host.top_up(python, 1)  # a spare compiles to the same bytes as a new guest
    assert await Cache(host, python).code(CHAT.encode()) == first
    assert await Cache(host, python).code(CHAT.encode(), "other.py") != first


async def test_a_run_with_code_computes_less(host: WasmHost, python: LinkedModule) -> None:
    text = f"{CHAT}\nasync def main(args): return 'done'\n"
    code = await Cache(host, python).code(text.encode())
    host.top_up(python, 2)
    plain, plain_ns = ran(host, python, text)
    host.top_up(python, 2)
    quick, quick_ns = ran(host, python, text, code=code)
    assert plain.text == quick.text == "done"
    assert quick_ns < 0.7 * plain_ns


@pytest.mark.parametrize(
    "text", ["def main(: pass", "def main():\n    return '\\d'\n", "x = 1\n" * (compiled.SOURCE_BYTES // 6 + 1)]
)
async def test_what_fails_or_warns_or_is_too_long_compiles_in_each_run(
    host: WasmHost, python: LinkedModule, text: str
) -> None:
    cache = Cache(host, python)
    assert await cache.code(text.encode()) == b""
    assert await cache.code(text.encode()) == b""
    assert cache.sources._at_work is None  # it isn't tried again
    assert not any(cache.ledger.taken.values())


async def test_code_is_bounded_and_gives_its_memory_back(host: WasmHost, python: LinkedModule) -> None:
    texts = [f"def main():\n    return {'x' * 1000!r} + '{n}'\n".encode() for n in range(4)]
    size = len(await Cache(host, python).code(texts[0]))
    cache = Cache(host, python, kept_bytes=3 * size)
    assert [len(await cache.code(text)) for text in texts] == [size] * 4
    assert cache.ledger.taken[Use.SOURCES] == 3 * size
    assert cache.ledger.taken[Use.COMPILERS] == 0
    assert await cache.code(texts[0])  # it was forgotten, and is compiled again
    small = Cache(host, python, bound=1 << 20)
    assert await small.code(texts[0]) == b""
    assert not any(small.ledger.taken.values())


async def test_a_tenant_that_fills_the_memory_for_code_drives_out_its_own(
    host: WasmHost, python: LinkedModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_KEPT", 8)
    texts = [f"def main():\n    return {'x' * 1000!r} + '{n}'\n".encode() for n in range(5)]
    size = len(await Cache(host, python).code(texts[0]))
    large = f"def main():\n    return {'x' * (2 * size)!r}\n".encode()
    cache = Cache(host, python, kept_bytes=3 * size)
    assert len(await cache.code(texts[0], tenant="victim")) == size
    assert cache.launch(texts[0], tenant="evil") == b"", "another tenant's code, which would tell that it was compiled"
    for text in texts[1:]:
        assert len(await cache.code(text, tenant="evil")) == size
    assert await cache.code(large, tenant="evil") == b"", "it would leave no room for others"
    for n in range(50):
        cache.launch(b"%d" % n, tenant="evil")
    assert len(cache.launch(texts[0], tenant="victim")) == size
    assert cache.ledger.taken[Use.SOURCES] <= 3 * size


async def test_code_that_is_much_longer_than_its_source_is_not_kept(host: WasmHost, python: LinkedModule) -> None:
    text = "x = (" + "".join(f"b'\\xff{n}'*1000," for n in range(600)) + ")\n"
    cache = Cache(host, python)
    assert len(text) < compiled.SOURCE_BYTES // 50
    assert await cache.code(text.encode()) == b""
    assert not any(cache.ledger.taken.values())


async def test_launches_come_before_compiling(host: WasmHost, python: LinkedModule) -> None:
    cache = Cache(host, python, bound=256 << 20)
    cache.ledger.take(Use.PROGRAMS, 80 << 20)
    assert await cache.code(b"def main(): pass") == b""
    cache.ledger.give(Use.PROGRAMS, 80 << 20)
    cache.launch(b"def main(): pass")
    assert cache.sources._at_work is not None
    await cache.sources._at_work
    assert cache.launch(b"def main(): pass")


async def test_a_runtime_that_closes_leaves_no_guest(host: WasmHost, python: LinkedModule) -> None:
    cache = Cache(host, python)
    for _ in range(2):
        cache.launch(b"x = 1\n" * 50_000)
    await asyncio.sleep(0)
    working = cache.sources._at_work
    assert working is not None
    assert host.num_guests == 1
    cache.sources.close()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert host.num_guests == 0
    assert not any(cache.ledger.taken.values())


async def test_runs_without_a_journal_take_the_code_and_those_with_one_do_not(
    run_dir: Path, python_component: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    del python_component
    given: list[bool] = []
    code_of = CompiledSources.code

    def seen(*args: Any) -> bytes:
        given.append(bool(code := code_of(*args)))
        return code

    monkeypatch.setattr(CompiledSources, "code", seen)
    source = "import asyncio\nasync def main(args):\n    print(args[0])\n    return len(args[0]) * 2\n"
    async with running(run_dir) as rig:
        async with asyncio.timeout(60):
            while True not in given:
                events = await run_program(rig, source, args=["abc"], durable=False)
                assert events[-1].data == b"6", events[-1].error
        count = len(given)
        events = await run_program(rig, source, args=["again"], durable=False)
        assert (b"".join(e.data for e in events if e.kind == _Event.STDOUT), events[-1].data) == (b"again\n", b"10")
        assert given[count:] == [True]
        await run_program(rig, source, args=["abc"], durable=True)
        assert len(given) == count + 1
