"""Coding agents of others, unchanged: Codex and Claude Code answer, and run a command that the program asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.environments import node_of, ran
from tests.gateway.conftest import Gateway

pytestmark = [pytest.mark.beyond_gate, pytest.mark.timeout(500)]


def said(gateway: Gateway, home: Path, *command: str | Path, **more: str) -> str:
    """Returns what an agent prints."""
    done = ran(home, gateway.url, *command, timeout_s=200, **more)
    return done.stdout + done.stderr


def test_codex(gateway: Gateway, tmp_path: Path) -> None:
    folder = tmp_path / ".codex"
    folder.mkdir()
    provider = {"name": '"Tartlet"', "base_url": f'"{gateway.url}/v1"', "wire_api": '"responses"'}
    lines = ['model = "fake/helper"', 'model_provider = "tartlet"', "[model_providers.tartlet]"]
    (folder / "config.toml").write_text("\n".join([*lines, *(f"{k} = {v}" for k, v in provider.items())]))
    codex = node_of("codex") / "node_modules/.bin/codex"
    options = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    assert "You said: hello" in said(gateway, tmp_path, codex, *options, "hello")
    call = json.dumps({"cmd": "echo $((40+2)) is it"})
    assert "42 is it" in said(gateway, tmp_path, codex, *options, f"call exec_command {call}")


def test_claude_code(gateway: Gateway, tmp_path: Path) -> None:
    models = dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"), "fake/helper")
    quiet = dict.fromkeys(("DISABLE_TELEMETRY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER"), "1")
    own = {"ANTHROPIC_BASE_URL": gateway.url, "ANTHROPIC_API_KEY": "none", **models, **quiet}
    claude = node_of("claude") / "node_modules/.bin/claude"
    assert "You said: " in said(gateway, tmp_path, claude, "-p", "hello", **own)
    call = json.dumps({"command": "echo $((40+2)) is it", "description": "Adds"})
    told = said(gateway, tmp_path, claude, "-p", f"call Bash {call}", "--allowedTools", "Bash", **own)
    assert "The tool said: 42 is it" in told
