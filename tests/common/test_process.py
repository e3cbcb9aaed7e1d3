"""What `run_role` does around a role, seen from the process that starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tartlet_common.errors import exit_codes
from tartlet_common.errors.registry import AddressInUse

ROLE = textwrap.dedent(
    """
    import asyncio, sys
    from tartlet_common.errors.registry import AddressInUse
    from tartlet_common.process.role import run_role
    from tartlet_common.config.settings import ControlSettings

    async def main(settings, notify):
        if settings.batching == "eager":
            raise AddressInUse(address=settings.address)
        notify.ready()
        try:
            await asyncio.sleep(60)
        finally:
            print("cleaned up", flush=True)

    sys.exit(run_role("control", ControlSettings, main))
    """
)


def _start(tmp_path: Path, *flags: str) -> tuple[subprocess.Popen[str], int]:
    script = tmp_path / "role.py"
    script.write_text(ROLE)
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(script), "--ready-fd", str(write), *flags],
        pass_fds=[write], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(write)
    return process, read


def test_a_role_says_ready_and_cleans_up_on_sigterm(tmp_path: Path) -> None:
    process, fd = _start(tmp_path)
    with process, os.fdopen(fd) as ready:
        assert ready.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("cleaned up\n", 0), err


def test_a_role_that_cannot_start_says_why_to_its_parent_and_its_user(tmp_path: Path) -> None:
    process, fd = _start(tmp_path, "--batching", "eager", "--address", "unix:/x")
    with process, os.fdopen(fd) as ready:
        assert ready.readline() == 'error 505 {"address":"unix:/x"}\n'
        _, err = process.communicate(timeout=20)
    assert process.returncode == exit_codes.SYSTEM
    assert AddressInUse(address="unix:/x").explained in err, "with the remedy"


def test_a_wrong_setting_is_a_wrong_command_line(tmp_path: Path) -> None:
    for flags, said in (
        (("--policy", "eager"), "unrecognized arguments: --policy (it is called '--batching' now)"),
        (("--batching", "fast"), "batching is 'fast' (from flag), but must be one of"),
        (("--config", "nowhere.toml"), "nowhere.toml: No such file or directory"),
        # No abbreviations: they end with the next setting.
        (("--batchin", "eager"), "unrecognized arguments: --batchin (did you mean '--batching'?)"),
        (("stray",), "unrecognized arguments: stray\n"),
    ):
        process, fd = _start(tmp_path, *flags)
        with process, os.fdopen(fd):
            _, err = process.communicate(timeout=20)
        assert process.returncode == exit_codes.USAGE
        assert said in err


def test_a_role_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    process, fd = _start(tmp_path, "--parent-pid", "1")
    with process, os.fdopen(fd) as ready:
        assert ready.read() == ""
        process.communicate(timeout=20)
    assert process.returncode == 1
