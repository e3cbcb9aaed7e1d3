"""What a command says while a `tartlet serve` runs whose runtime has just died."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tartlet_cli.console.calls import restarting
from tartlet_common.errors.registry import Unavailable

ERROR = Unavailable(what="the server at unix:/x", detail="connection refused")


def test_a_server_that_serve_starts_again_is_said_to_come_back(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/runtime.sock"
    assert restarting(ERROR, address) is ERROR
    assert restarting(ERROR, "10.0.0.7:9000") is ERROR
    with (tmp_path / "lock").open("w") as lock:  # as `tartlet serve` holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(str(os.getpid()))
        lock.flush()
        told = restarting(ERROR, address)
    assert {name: told.fields[name] for name in ERROR.fields} == ERROR.fields
    assert f"process {os.getpid()}" in told.remedy
    assert restarting(ERROR, address) is ERROR


def test_a_remedy_that_the_error_has_gives_way(tmp_path: Path) -> None:
    own = Unavailable(what="control", detail="gone", remedy="Wait.")
    assert restarting(own, f"unix:{tmp_path}/runtime.sock").remedy == "Wait."
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("7")
        lock.flush()
        assert "process 7" in restarting(own, f"unix:{tmp_path}/runtime.sock").remedy
