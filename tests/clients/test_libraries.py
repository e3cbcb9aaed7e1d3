"""Libraries that speak the OpenAI API, unchanged, each in an environment of its own: LangChain and its kin."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import node_of, python_of, ran
from tests.gateway.conftest import Gateway
from tests.lacking import lacking

PROGRAMS = Path(__file__).parent / "programs"
SAID = "You said: hello"
ANSWERED = "The tool said: 42"


def asks(gateway: Gateway, home: Path, *command: str | Path) -> dict[str, Any]:
    """Runs a program of a client, and returns the JSON that it prints last."""
    done = ran(home, gateway.url, *command, timeout_s=300)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def python_asks(gateway: Gateway, home: Path, name: str) -> dict[str, Any]:
    return asks(gateway, home, python_of(name), PROGRAMS / f"{name}_asks.py")


def check_chat(told: dict[str, Any]) -> None:
    assert told["chat"] == "".join(told["stream"]) == SAID
    assert len(told["stream"]) > 1, "it came in pieces"


@pytest.mark.beyond_gate
@pytest.mark.timeout(400)
def test_langchain(gateway: Gateway, tmp_path: Path) -> None:
    told = python_asks(gateway, tmp_path, "langchain")
    check_chat(told)
    assert told["usage"] == 10
    assert told["tool"] == ["add", {"a": 19, "b": 23}]
    assert told["answered"] == ANSWERED
    assert told["mood"] in ("good", "bad")


@pytest.mark.beyond_gate
@pytest.mark.timeout(400)
def test_llamaindex(gateway: Gateway, tmp_path: Path) -> None:
    told = python_asks(gateway, tmp_path, "llamaindex")
    check_chat(told)
    assert told["tool"] == ["add", {"a": 19, "b": 23}]
    assert told["answered"] == "42"
    assert told["completed"]


@pytest.mark.beyond_gate
@pytest.mark.timeout(400)
def test_litellm(gateway: Gateway, tmp_path: Path) -> None:
    told = python_asks(gateway, tmp_path, "litellm")
    check_chat(told)
    assert told["usage"] == 10
    assert told["tool"] == ["add", {"a": 19, "b": 23}]
    assert told["answered"] == ANSWERED
    assert told["errors"] == ["NotFoundError", "ContextWindowExceededError"]


@pytest.mark.beyond_gate
@pytest.mark.timeout(400)
def test_agents_sdk(gateway: Gateway, tmp_path: Path) -> None:
    told = python_asks(gateway, tmp_path, "agents")
    assert told == {name + way: said for name in ("responses", "chats") for way, said in WAYS.items()}


WAYS = {"": ANSWERED, "_streamed": SAID}


@pytest.mark.timeout(400)
def test_vercel_ai_sdk(gateway: Gateway, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        lacking("no Node: apt-get install nodejs npm")
    try:
        modules = node_of("vercel") / "node_modules"
    except subprocess.CalledProcessError as e:
        pytest.skip(f"the packages can't be had here: {e}")
    program = tmp_path / "asks.mjs"
    shutil.copy(PROGRAMS / "vercel_asks.mjs", program)
    (tmp_path / "node_modules").symlink_to(modules)
    told = asks(gateway, tmp_path, "node", program)
    for way in ("responses", "chats"):
        check_chat(told[way])
        assert (told[way]["reason"], told[way]["usage"]) == ("stop", 10)
        assert (told[way]["answered"], told[way]["steps"]) == (ANSWERED, 2)
