"""`python -m inferlet._running.native`: the guest's side of the runtime's socket."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inferlet._running import native as _native
from tartlet_common.errors.registry import UnknownProgram
from tests.sdk.host.harness import tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import reference_generate


class Runtime(threading.Thread):
    """Serves one native guest with a `MiniHost` behind it."""

    def __init__(self, path: Path, host: MiniHost, *, refuse: bool = False) -> None:
        super().__init__(daemon=True)
        self.host, self.refuse = host, refuse
        self.token, self.end = "", b""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()

    def run(self) -> None:
        stream, _ = self.listener.accept()
        with self.listener, stream, stream.makefile("rb") as received:
            while head := received.read(5):
                length, kind = struct.unpack("<IB", head)
                body = received.read(length - 1)
                answer = self.answer(kind, body)
                if answer is not None:
                    stream.sendall(struct.pack("<IB", 1 + len(answer[1]), answer[0]) + answer[1])
                if self.end or self.refuse:
                    return

    def answer(self, kind: int, body: bytes) -> tuple[int, bytes] | None:
        match kind:
            case _native.HELLO if self.refuse:
                error = UnknownProgram(program="x")
                return _native.ERROR, struct.pack("<I", error.number) + error.to_json()
            case _native.HELLO:
                self.token = body.decode()
                return _native.WELCOME, json.dumps({"filename": "x", "args": [], "random": "05" + "00" * 15}).encode()
            case _native.SUBMIT:
                self.host.submit(body)
            case _native.WAIT:
                return _native.DELIVERY, self.host.wait(*struct.unpack("<IQ", body))
            case _native.END:
                self.end = body
        return None


def launch(
    run_dir: Path, program: str, *args: str, refuse: bool = False
) -> tuple[subprocess.CompletedProcess[str], Runtime]:
    """Run a program natively, as the CLI does."""
    runtime = Runtime(run_dir / "guest.sock", MiniHost(), refuse=refuse)
    runtime.start()
    path = run_dir / "prog.py"
    path.write_text(program)
    env = {**os.environ, "TARTLET_GUEST_SOCKET": str(run_dir / "guest.sock"), "TARTLET_GUEST_TOKEN": "secret"}
    command = [sys.executable, "-m", "inferlet._running.native", str(path), *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    runtime.join(10)
    return done, runtime


def test_a_native_program_prints_to_the_terminal_and_returns_its_result(run_dir: Path) -> None:
    (run_dir / "neighbour.py").write_text("PROMPT = 'Hello,'\n")
    program = (
        "import sys\nimport neighbour\nfrom inferlet import Context\n"
        "async def main():\n    ctx = Context()\n    ctx.fill(neighbour.PROMPT)\n"
        "    print(await ctx.generate_until(max_tokens=6))\n    return sys.argv[1]\n"
    )
    done, runtime = launch(run_dir, program, "--flag")
    assert done.returncode == 0, done.stderr
    assert done.stdout.encode() == bytes(reference_generate(tokens_of("Hello,"), 6)) + b"\n"
    assert runtime.token == "secret"
    assert runtime.end == b"\1--flag"
    assert runtime.host.log[1] == b""


def test_a_native_failure_is_the_program_s_traceback_and_status_1(run_dir: Path) -> None:
    done, runtime = launch(run_dir, "def helper():\n    raise KeyError('x')\nasync def main():\n    helper()\n")
    assert done.returncode == 1
    told = [line.strip() for line in done.stderr.splitlines()]
    assert [line for line in told if line.strip("~^")] == [  # newer Pythons point at what raised
        "Traceback (most recent call last):",
        f'File "{run_dir}/prog.py", line 4, in main',
        "helper()",
        f'File "{run_dir}/prog.py", line 2, in helper',
        "raise KeyError('x')",
        "KeyError: 'x'",
    ]
    assert runtime.end == b"\0" + done.stderr.strip().encode()


@pytest.mark.parametrize(
    ("beside", "program", "frames"),
    [
        (
            "def outer():\n    return 1 / 0\n",
            "import beside\ndef main():\n    beside.outer()\n",
            ["3, in main", "2, in outer"],
        ),
        ("x = 1\nundefined\n", "import beside\ndef main(): pass\n", ["1, in <module>", "2, in <module>"]),
    ],
    ids=["called", "imported"],
)
def test_a_failure_in_a_module_that_the_program_imports_shows_where(
    run_dir: Path, beside: str, program: str, frames: list[str]
) -> None:
    (run_dir / "beside.py").write_text(beside)
    done, _ = launch(run_dir, program)
    told = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("File")]
    files = ("prog.py", "beside.py")
    assert told == [f'File "{run_dir}/{file}", line {at}' for file, at in zip(files, frames, strict=True)]


def test_the_launch_s_seed_decides_the_program_s_randomness(run_dir: Path) -> None:
    _, runtime = launch(run_dir, "import random\ndef main(): return random.random()\n")
    assert runtime.end[1:].decode() == str(random.Random(5).random())


def test_a_thread_that_works_ends_a_wait_and_an_idle_one_does_not(run_dir: Path) -> None:
    program = (
        "import asyncio, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "def work():\n    time.sleep(0.2)\n    return 'worked'\n"
        "async def main():\n    pool = ThreadPoolExecutor()\n"
        "    print(await asyncio.wrap_future(pool.submit(work)))\n    await asyncio.Future()\n"
    )
    done, _ = launch(run_dir, program)
    assert done.stdout == "worked\n", done.stderr
    assert "NothingToWaitFor" in done.stderr


def test_a_refused_token_says_so(run_dir: Path) -> None:
    done, _ = launch(run_dir, "def main(): pass\n", refuse=True)
    assert done.returncode == 1
    assert "no program x" in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_listening_says_so(run_dir: Path) -> None:
    with pytest.raises(Exception, match="can't be reached"):
        _native.connect(str(run_dir / "nothing.sock"), "t")
