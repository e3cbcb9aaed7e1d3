from __future__ import annotations

from pathlib import Path

import pytest

from tartlet_cli.console import exits
from tartlet_common.errors.registry import Unavailable
from tests.e2e.serving import PROGRAMS, out, tartlet_cli


@pytest.mark.parametrize(
    ("address", "code", "named"),
    [
        ("nonsense", exits.USAGE, ["--server", "unix:/path", "host:port", "`local`"]),
        ("http://host:1", exits.USAGE, ["--server", "unix:/path", "host:port", "`local`", "scheme"]),
        ("localhost:1", exits.USAGE, ["--tls-certificate", "--tls-key", "--tls-authority"]),
        ("unix:/no/such.sock", exits.SYSTEM, ["Unavailable: ", Unavailable.remedy]),
    ],
)
def test_an_address_where_no_server_can_be_says_what_to_give(
    run_dir: Path, address: str, code: int, named: list[str]
) -> None:
    for line in (["ps"], ["run", str(PROGRAMS / "echo.py")]):
        result = tartlet_cli(run_dir, *line, "--server", address)
        assert (result.returncode, result.stdout) == (code, "")
        assert [word for word in (address, *named) if word not in result.stderr] == []


@pytest.mark.parametrize(
    "line", [("run",), ("launch",), ("serve", "--rolle"), ("bench", "nope"), ("ps", "x"), ("catalogue", "put")]
)
def test_a_wrong_command_line_names_the_help(run_dir: Path, line: tuple[str, ...]) -> None:
    refused = tartlet_cli(run_dir, *line)
    name = " ".join(line[: 2 if line[0] == "catalogue" else 1])
    assert (refused.returncode, refused.stdout) == (exits.USAGE, "")
    assert f"Try 'tartlet {name} --help' for help." in refused.stderr
    options = out(run_dir, *name.split(), "--help").partition("Options:\n")[2]
    assert [line for line in options.splitlines() if line.startswith("  ") and line.strip() in {"FILE", "NAME"}] == []


def test_a_mistyped_command_names_the_one_that_is_close(run_dir: Path) -> None:
    mistyped = tartlet_cli(run_dir, "lunch", "hello.py")
    assert mistyped.returncode == exits.USAGE
    assert "No such command 'lunch'. Did you mean 'launch'?" in mistyped.stderr
    assert out(run_dir, "--version") == out(run_dir, "version")
