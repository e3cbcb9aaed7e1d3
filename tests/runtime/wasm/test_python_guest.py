"""The Python guest on both boundaries: its WASI, its limits, and how its programs end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tartlet_common.errors.registry import (
    MalformedSubmission,
    NotAllowed,
    ProgramCpuExceeded,
    ProgramFailed,
    ProgramMemoryExceeded,
    ProgramTrapped,
    TartletError,
)
from tartlet_runtime.wasm import (
    FOREVER_US,
    Compiled,
    Delivery,
    GuestLimits,
    HostConfig,
    LinkedModule,
    OutcomeKind,
    Phase,
    SystemClock,
    SystemRandom,
    WasmHost,
)
from tests.runtime.wasm.driving import START_NS, Driver, outcome_of, printed, submitted

pytestmark = pytest.mark.timeout(300)  # the first test builds the guest


def program(*lines: str) -> str:
    """An async `main` of these lines, with the host's raw functions at hand."""
    body = "\n".join(f"    {line}" for line in lines)
    return f"import os, sys, time\nfrom inferlet._wire import host as _host\nasync def main():\n{body}\n"


def result(
    driver: Driver, python: LinkedModule, *lines: str, deliveries: tuple[bytes, ...] = (), seed: bytes = b"s"
) -> str:
    guest = driver.run(driver.start(python, program(*lines), seed=seed), *deliveries)
    outcome = outcome_of(guest)
    assert outcome.kind is OutcomeKind.OK, outcome
    return outcome.text


def test_every_byte_value_crosses_both_ways(driver: Driver, python: LinkedModule) -> None:
    data = bytes(range(256)) * 3
    source = program("_host.backend.submit(bytes(range(256)) * 3)", "return _host.backend.wait(9, 77).hex()")
    guest = driver.run(driver.start(python, source))
    assert guest.wait_request is not None
    assert (guest.wait_request.max_records, guest.wait_request.timeout_us) == (9, 77)
    driver.run(guest, data)
    assert submitted(guest)[0] == data
    assert outcome_of(guest).text == data.hex()


def test_a_wait_without_a_time_limit(driver: Driver, python: LinkedModule) -> None:
    guest = driver.run(driver.start(python, program("_host.backend.wait(1, _host.NO_TIMEOUT_US)")))
    assert guest.wait_request is not None
    assert guest.wait_request.timeout_us == FOREVER_US
    guest.kill()


def test_a_code_point_that_is_no_byte_is_refused(driver: Driver, python: LinkedModule) -> None:
    source = program("from wit_world.imports import host", "host.submit('a\\u0100')")
    outcome = outcome_of(driver.run(driver.start(python, source)))
    assert isinstance(outcome.error, MalformedSubmission)
    assert "U+0100" in str(outcome.error)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_random_wit_strings_are_submitted_or_refused_and_harm_nobody(
    driver: Driver, python: LinkedModule, text: str
) -> None:
    source = program("from wit_world.imports import host", f"host.submit({text!r})", "return 'here'")
    guest = driver.start(python, source)
    other = driver.run(driver.start(python, program("return _host.backend.wait(1, 0).decode('latin-1')")))
    outcome = outcome_of(driver.run(guest))
    if all(ord(c) < 256 for c in text):
        assert outcome.kind is OutcomeKind.OK, outcome
        assert submitted(guest)[0] == text.encode("latin-1")
    else:
        assert isinstance(outcome.error, MalformedSubmission), outcome
    assert outcome_of(driver.run(other, b"fine")).text == "fine"


def test_a_traceback_names_the_users_file_and_line(driver: Driver, python: LinkedModule) -> None:
    outcome = outcome_of(driver.run(driver.start(python, "x = 1\n\nasync def main():\n    return x / 0\n")))
    assert outcome.kind is OutcomeKind.ERROR
    assert isinstance(outcome.error, ProgramFailed)
    assert 'File "user.py", line 4, in main\n    return x / 0' in outcome.text
    assert outcome.text.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_syntax_error_names_its_line(driver: Driver, python: LinkedModule) -> None:
    outcome = outcome_of(driver.run(driver.start(python, "a = 1\ndef main(:\n    pass\n")))
    assert outcome.kind is OutcomeKind.ERROR
    assert 'File "user.py", line 2' in outcome.text
    assert "SyntaxError" in outcome.text


def test_writes_reach_the_embedder_by_stream(driver: Driver, python: LinkedModule) -> None:
    source = program("os.write(1, b'to stdout \\xff')", "os.write(2, b'to stderr')")
    guest = driver.run(driver.start(python, source))
    assert printed(guest, 1) == b"to stdout \xff"
    assert printed(guest, 2) == b"to stderr"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("open('/etc/passwd')", "FileNotFoundError"),
        ("open('made.txt', 'w')", "OSError"),
        ("os.listdir('/')", "OSError"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "OSError"),
        ("import socket; socket.getaddrinfo('example.org', 80)", "OSError"),
        ("import subprocess; subprocess.run(['ls'])", "OSError, ImportError"),
        ("sys.stdin.read(1)[0]", "IndexError"),
    ],
)
def test_what_does_not_exist_fails_in_python(driver: Driver, python: LinkedModule, line: str, error: str) -> None:
    text = result(driver, python, "try:", f"    {line}", f"except ({error}) as e:", "    return type(e).__name__")
    assert text


def test_the_environment_is_empty(driver: Driver, python: LinkedModule) -> None:
    assert result(driver, python, "return dict(os.environ)") == "{}"


def test_leaving_by_os_exit_is_not_allowed(driver: Driver, python: LinkedModule) -> None:
    outcome = outcome_of(driver.run(driver.start(python, program("os._exit(0)"))))
    assert isinstance(outcome.error, NotAllowed)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("x = []\n    while True: x.append(bytes(1 << 20))", ProgramMemoryExceeded),
        ("bytearray(1 << 30)", ProgramMemoryExceeded),
        ("f = lambda n: f(n + 1) + 1\n    f(0)", ProgramFailed),
        ("x = []\n    for _ in range(100000): x = [x]\n    repr(x)", ProgramTrapped),
        ("import re; re.match('(a?)*' * 3000, 'a' * 3000)", None),
    ],
)
def test_greed_ends_in_a_typed_error(
    driver: Driver, python: LinkedModule, line: str, error: type[TartletError] | None
) -> None:
    limits = GuestLimits(memory_bytes=64 << 20, cpu_burst_s=1.0)
    outcome = outcome_of(driver.run(driver.start(python, program(line), limits=limits)))
    if error is None:
        assert outcome.kind in {OutcomeKind.OK, OutcomeKind.ERROR, OutcomeKind.TRAP}
    else:
        assert type(outcome.error) is error, outcome


@pytest.mark.parametrize("mib", [1, 26, 28, 34])
@pytest.mark.parametrize(
    "line",
    [
        "x.append(bytes(1 << 20))",
        "x.append(list(range(1000)))",
        "x.append({len(x): len(x)})",
        "x.append(bytes(200_000)); _host.backend.submit(bytes(100_000)); _host.backend.wait(1, 1)",
        "_host.backend.wait(1, 1); x.append(_host.backend.wait(1, 1))",
        "s += 'x' * 100_000",
        "s = s + s",
    ],
)
def test_whatever_allocation_fails_it_is_told_as_the_limit_and_no_panic(
    driver: Driver, python: LinkedModule, line: str, mib: int
) -> None:
    limits = GuestLimits(memory_bytes=mib << 20)
    guest = driver.start(python, program("x, s = [], 'x'", f"while True: {line}"), limits=limits)
    error = outcome_of(driver.run(guest, *[bytes(200_000)] * 300)).error
    assert isinstance(error, ProgramMemoryExceeded), error
    assert error.fields["limit_bytes"] == mib << 20
    assert printed(guest, 2) == b""


@pytest.mark.parametrize("line", ["s += 'x' * 100_000", "s = s + s", "t = s + s; s = t"])
def test_a_string_that_finds_no_memory_is_told_as_the_limit(driver: Driver, python: LinkedModule, line: str) -> None:
    source = f"def main():\n    s = 'x'\n    while True:\n        {line}\n"
    error = outcome_of(driver.run(driver.start(python, source, limits=GuestLimits(memory_bytes=64 << 20)))).error
    assert isinstance(error, ProgramMemoryExceeded), error


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("breakpoint()", "no debugger"),
        ("import pdb", "no debugger"),
        ("import socket; socket.socket()", "no network"),
        ("import socket; socket.create_connection(('example.org', 80))", "no network"),
        ("import urllib.request", "no network"),
        ("import asyncio; await asyncio.open_connection('127.0.0.1', 80)", "no network"),
        ("import subprocess; subprocess.run(['ls'])", "no processes"),
        ("import asyncio; await asyncio.create_subprocess_exec('ls')", "no processes"),
        ("os.system('ls')", "no processes"),
        ("import multiprocessing", "no processes"),
        ("import threading; threading.Thread(target=print).start()", "no threads"),
        ("import asyncio; await asyncio.to_thread(print)", "no threads"),
        ("open('data.txt')", "no files"),
        ("open('made.txt', 'w')", "no files"),
        ("os.listdir('.')", "no files"),
        ("import tempfile; tempfile.NamedTemporaryFile()", "no files"),
        ("import numpy", "no modules beside"),
        ("import sqlite3", "not all of the standard library"),
        ("input('name? ')", "no standard input: `await inferlet.receive()`"),
        (
            "import asyncio\n    async with asyncio.TaskGroup() as g: g.create_task(asyncio.to_thread(print))",
            "no threads",
        ),
    ],
)
def test_a_failure_for_want_of_what_the_sandbox_has_not_says_so(
    driver: Driver, python: LinkedModule, line: str, hint: str
) -> None:
    outcome = outcome_of(driver.run(driver.start(python, program(line))))
    assert 'File "user.py", line' in outcome.text
    last = outcome.text.splitlines()[-1]
    assert last.startswith(f"The sandbox has {hint}"), outcome.text
    assert "input" in line or last.endswith("`tartlet run --native FILE` runs the program outside it.")


@pytest.mark.parametrize("line", ["raise OSError('mine')", "{}['HOME']", "raise TimeoutError", "1 / 0", "exit('bye')"])
def test_other_failures_say_nothing_of_the_sandbox(driver: Driver, python: LinkedModule, line: str) -> None:
    outcome = outcome_of(driver.run(driver.start(python, program(line))))
    assert outcome.kind is OutcomeKind.ERROR
    assert "sandbox" not in outcome.text


def test_an_endless_loop_yields_and_is_ended_at_its_limit(driver: Driver, python: LinkedModule) -> None:
    guest = driver.start(python, program("while True: pass"), limits=GuestLimits(cpu_burst_s=0.1))
    assert guest.step() is Phase.READY
    driver.run(guest)
    assert isinstance(outcome_of(guest).error, ProgramCpuExceeded)


def test_sleep_suspends_and_moves_the_guests_clock(driver: Driver, python: LinkedModule) -> None:
    before = time.monotonic()
    text = result(driver, python, "a = time.monotonic()", "time.sleep(30)", "return time.monotonic() - a")
    assert 30 <= float(text) < 30.001
    assert driver.slept_us == [pytest.approx(30e6, abs=10)]
    assert time.monotonic() - before < 20


def test_clock_and_randomness_are_the_guests_own(driver: Driver, python: LinkedModule) -> None:
    lines = (
        "import random, uuid, secrets, json",
        "ids = [str(uuid.uuid4()), secrets.token_hex(8), os.urandom(5).hex()]",
        "return json.dumps([time.time_ns(), time.monotonic(), random.random(), *ids])",
    )
    first, again, other = (result(driver, python, *lines, seed=seed) for seed in (b"a", b"a", b"b"))
    assert first == again != other
    assert START_NS < json.loads(first)[0] < START_NS + 1_000_000


def test_a_program_that_is_not_durable_sees_the_real_clock_and_entropy(host: WasmHost, python: LinkedModule) -> None:
    texts = []
    for _ in range(2):
        guest = host.create(python, clock=SystemClock(), random=SystemRandom())
        guest.start(program("import random", "return f'{time.time()} {random.random()}'"), "user.py")
        while guest.step() is Phase.READY:
            pass
        texts.append(outcome_of(guest).text.split())
    assert abs(float(texts[0][0]) - time.time()) < 60
    assert texts[0][1] != texts[1][1]


def test_kill_while_suspended(driver: Driver, host: WasmHost, python: LinkedModule) -> None:
    guest = driver.run(driver.start(python, program("_host.backend.wait(1, 1)")))
    assert guest.phase is Phase.WAITING
    guest.kill("no longer wanted")
    host.drain()
    assert outcome_of(guest).kind is OutcomeKind.KILLED


def test_the_same_run_submits_the_same_bytes(driver: Driver, python: LinkedModule) -> None:
    source = program(
        "import random",
        "for i in range(20):",
        "    _host.backend.submit(f'{i} {random.random()} {time.time()} {set(map(str, range(9)))}'.encode())",
        "    _host.backend.wait(1, 1000)",
    )
    runs = [submitted(driver.run(driver.start(python, source), *[b"x"] * 20)) for _ in range(3)]
    assert len(runs[0]) >= 20
    assert runs[0] == runs[1] == runs[2]


def test_100_guests_at_once(driver: Driver, python: LinkedModule) -> None:
    source = program("_host.backend.submit(b'up')", "return _host.backend.wait(1, 1).decode()")
    guests = [driver.start(python, source) for _ in range(100)]
    driver.settle(*guests)
    assert {guest.phase for guest in guests} == {Phase.WAITING}
    assert all(submitted(guest)[0] == b"up" for guest in guests)
    for i, guest in enumerate(guests):
        guest.deliver(Delivery(b"%d" % i, 0))
    driver.settle(*guests)
    assert [outcome_of(guest).text for guest in guests] == [str(i) for i in range(100)]


def test_a_spare_behaves_as_a_new_instance(driver: Driver, host: WasmHost, python: LinkedModule) -> None:
    lines = ("import random, json", "x = {object() for _ in range(9)}", "return json.dumps([random.random(), id(x)])")
    fresh = result(driver, python, *lines)
    assert host.top_up(python, 1)
    assert result(driver, python, *lines) == fresh
    assert host.num_spares == 0


def test_spares_follow_the_demand(cache_dir: Path, python_compiled: Compiled) -> None:
    config = HostConfig(cache_dir=cache_dir, min_spares=2, max_spares=4, max_guests=8)
    with WasmHost(config) as host:
        python = host.load(python_compiled)
        while host.tend(python):
            pass
        assert host.num_spares == 2
        for _ in range(6):
            host.expect(python, time.monotonic())
        while host.tend(python):
            pass
        assert host.num_spares == 4
        host.unload(python)
        while host.tend(python):
            pass
        assert host.num_spares == 2


def test_many_step_on_several_threads_as_on_one(driver: Driver, host: WasmHost, python: LinkedModule) -> None:
    """Whatever one does meanwhile (print, trap, ask for the time, overflow its stack) is its own affair."""
    lines = (
        "who, words = int(sys.argv[1]), []",
        "for turn in range(3):",
        "    words.append(_host.backend.wait(9, 77).decode())",
        "    print(who, turn, time.time_ns() > 0, flush=True)",
        "    _host.backend.submit(str((who, turn)).encode() * 50)",
        "    if turn == 1 and who % 5 == 0: raise ValueError(who)",
        "    if turn == 1 and who % 5 == 1:",
        "        def deep(n): return [deep(n + 1) for _ in 'x']",
        "        deep(0)",
        "return str(words)",
    )

    def run(*, together: bool) -> list[tuple[Phase, object, list[bytes], bytes]]:
        guests = [driver.start(python, program(*lines), str(who)) for who in range(20)]
        driver.settle(*guests)
        for turn in range(3):
            alive = [guest for guest in guests if guest.phase is Phase.WAITING]
            for guest in alive:
                guest.deliver(Delivery(str(turn).encode(), START_NS))
            if together:
                for guest in alive:
                    host.begin_step(guest)
                if turn == 2:
                    guests[7].kill("while it computes elsewhere")
                for guest in alive:
                    host.end_step(guest)
            elif turn == 2:
                guests[7].kill("while it computes elsewhere")
            driver.settle(*alive)
        return [(guest.phase, outcome_of(guest).text, submitted(guest), printed(guest)) for guest in guests]

    apart = run(together=False)
    for _ in range(5):
        assert run(together=True) == apart
    assert {phase for phase, *_ in apart} == {Phase.ENDED}
    assert len(apart[2][2]) == 6  # three submissions, and what it printed before each
