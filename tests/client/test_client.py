"""What the client says to those who give it something else than it takes, or call where no server is."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import tartlet
from tartlet import Accepted, CatalogueEntry, LaunchSpec, Limits, Source
from tartlet._convert import launch_to_proto
from tartlet_common.errors.registry import InvalidArgument, InvalidConfig, Unavailable
from tests.e2e.serving import environment, tartlet_cli


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.run("x.py"), "source: 'x.py' is no Source: give Source.from_file(path) or Source.python(text)"),
        (lambda c: c.launch(Path("x.py")), "PosixPath('x.py') is no Source"),
        (lambda c: c.validate("x" * 1000), "source: a str is no Source"),
        (lambda c: c.put([CatalogueEntry("x", cast("Any", "x.py"))]), "'x.py' is no Source"),
        (lambda c: c.launch_many([Source.python("")]), "is no LaunchSpec"),
        (lambda c: c.run(Source(cast("Any", "async def main(): ..."))), "data: a program's text"),
        (lambda c: c.run(Source.python(""), "--flag"), "args: '--flag' is no sequence of strings"),
        (lambda c: c.run(Source.python(""), [3]), "args: [3] is no sequence of strings"),
        (lambda c: c.run(spec=LaunchSpec(seed=cast("Any", "3"))), "seed: '3' is neither a whole number nor 16 bytes"),
        (lambda c: c.run(spec=cast("Any", Source.python(""))), "spec: Source("),
        (lambda c: c.validate(None), "source: None is no Source"),
        (lambda c: c.put([CatalogueEntry("x", cast("Any", None))]), "source: None is no Source"),
        (lambda c: c.put(CatalogueEntry("x", Source.python(""))), "entries: one CatalogueEntry is no list of them"),
        (lambda c: c.put(3), "entries: 3 is no list of CatalogueEntry"),
        (lambda c: c.launch_many(LaunchSpec(inferlet="x")), "specs: one LaunchSpec is no list of them"),
        (lambda c: c.run(spec=LaunchSpec(model=cast("Any", 3))), "model: 3 is no str"),
        (lambda c: c.run(spec=LaunchSpec(durable=cast("Any", None))), "durable: None is no bool"),
        (lambda c: c.run(spec=LaunchSpec(durability="never")), "durability: 'never' is none of on, degrade, off"),
        (lambda _: LaunchSpec(durable=False, durability="degrade"), "durability: 'degrade' contradicts durable=False"),
        (lambda c: c.run(spec=LaunchSpec(limits=cast("Any", {"pages": 3}))), "limits: {'pages': 3} is no Limits"),
        (lambda _: Limits(deadline_s=cast("Any", "3")), "limits.deadline_s: '3' is no number"),
        (lambda _: Limits(pages=cast("Any", 1.5)), "limits.pages: 1.5 is no whole number"),
        (lambda c: c.run(spec=LaunchSpec(Source.python(""), "x")), "inferlet: there is a source, too"),
        (lambda c: c.run(), "source: there is none, and no inferlet"),
        (lambda c: c.get(3), "name: 3 is no str"),
        (lambda c: c.delete(3), "name: 3 is no str"),
        (lambda c: c.run(Source.python(""), spec=LaunchSpec(inferlet="x")), "spec: it names source and arguments"),
    ],
)
def test_what_is_no_program_is_told_from_one(call: Callable[[Any], Any], said: str) -> None:
    with tartlet.Client() as client, pytest.raises(InvalidArgument) as e:
        call(client)
    assert said in str(e.value)


@pytest.mark.parametrize("method", ["attach", "send", "kill"])
def test_what_is_no_id_is_told_from_one(method: str) -> None:
    accepted = Accepted("3f2b7c1e")
    more = ("message",) if method == "send" else ()
    with tartlet.Client() as client:
        for given, said in ((accepted, "Give its .program_id."), ([accepted.program_id], "Give one program's id")):
            with pytest.raises(InvalidArgument) as e:
                getattr(client, method)(given, *more)
            assert f"program_id: {given} is no id" in e.value.explained
            assert said in e.value.explained


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.attach("x", -1), "offset: -1 is negative"),
        (lambda c: c.attach("x", "1"), "offset: '1' is no whole number"),
        (lambda c: c.send("x", 3), "message: 3 is neither text nor bytes"),
        (lambda c: c.kill("x", 3), "reason: 3 is no str"),
    ],
)
def test_what_goes_with_an_id_is_checked_too(call: Callable[[Any], Any], said: str) -> None:
    with tartlet.Client() as client, pytest.raises(InvalidArgument, match=said):
        call(client)


def test_a_number_is_a_seed_as_the_command_line_takes_it() -> None:
    for given, sent in ((258, b"\2\1" + bytes(14)), (-1, b"\xff" * 16), (1 << 128, bytes(16)), (b"", b"")):
        assert launch_to_proto(LaunchSpec(inferlet="x", seed=given), attach=False, tie=False).seed == sent


def test_where_no_server_is_the_address_and_what_starts_one_are_told(run_dir: Path) -> None:
    code = "import tartlet\ntartlet.Client().state()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(run_dir), capture_output=True, text=True, check=False
    )
    error, remedy = done.stderr.splitlines()[-2:]
    where = f"unix:{run_dir}/runtime.sock"
    assert error.endswith(f"Unavailable: the server at {where} can't be reached: there is no such socket")
    assert remedy == "Start it with `tartlet serve`, or check the address."


def test_half_a_character_is_refused_where_it_is_given(run_dir: Path) -> None:
    with pytest.raises(InvalidArgument, match="args: its character 2 is half of one"):
        LaunchSpec(inferlet="x", args=["a\ud800"])
    with tartlet.Client(f"unix:{run_dir}/none.sock") as client, pytest.raises(InvalidArgument, match="message"):
        client.send("p", "\ud83d")
    (run_dir / "x.py").write_text("def main(): pass\n")
    done = tartlet_cli(run_dir, "run", "--engine", "fake", str(run_dir / "x.py"), "\udcff")
    assert done.returncode
    assert "InvalidArgument: args" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_blocking_client_closes_amid_a_running_loop(run_dir: Path) -> None:
    client = tartlet.Client(f"unix:{run_dir}/none.sock")
    with pytest.raises(Unavailable):
        client.state()
    client.close()
    client.close()


def test_a_socket_that_nobody_listens_at_is_told_shortly(run_dir: Path) -> None:
    path = run_dir / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with tartlet.Client(f"unix:{path}") as client, pytest.raises(Unavailable) as e:
        client.state()
    assert str(e.value).count("Connection refused") == 1
    assert "all addresses" not in str(e.value)


@pytest.mark.parametrize(
    ("address", "said"), [("localhost:1", "is TCP, and no TLS files are given"), ("local", "'local' is not an address")]
)
def test_an_address_that_cannot_be_dialed_says_why(address: str, said: str) -> None:
    with tartlet.Client(address) as client, pytest.raises(InvalidConfig, match=said):
        client.state()
