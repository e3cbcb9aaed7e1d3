"""The end of an InferletRun: waits for it, prints its error, and gives the command its exit code."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from tartlet_cli.console import exits

if TYPE_CHECKING:
    from tartlet_cli.cluster.api import Cluster, Object

ENDED: Final = ("Succeeded", "Failed")
_FIRST_SYSTEM_NUMBER: Final = 400


def wait(cluster: Cluster, name: str, timeout_s: float | None, look_s: float) -> Object:
    """Return a run once it has ended.

    Args:
        cluster: the cluster, with the run's namespace.
        name: the run's name.
        timeout_s: how long to wait, s; None: until the run has ended.
        look_s: time between two looks, s.

    Raises:
        RunNotEnded: the run went on for longer than `timeout_s`.
        NotThere: there is no such run, or it was deleted.
    """
    from tartlet_cli.cluster.api import RUNS
    from tartlet_cli.cluster.errors import UNSEEN, UNSEEN_TOLD, RunNotEnded

    started = time.monotonic()
    while True:
        run = cluster.get(RUNS, name, cluster.namespace)
        status = run.get("status") or {}
        if status.get("phase") in ENDED:
            return run
        if timeout_s is not None and time.monotonic() - started >= timeout_s:
            conditions: list[Object] = status.get("conditions") or []
            why = next((c for c in conditions if c["type"] == "Running"), {"reason": UNSEEN, "message": UNSEEN_TOLD})
            raise RunNotEnded(name=name, waited_s=timeout_s, reason=why["reason"], detail=why.get("message", ""))
        time.sleep(look_s)


def exit_of(status: dict[str, Any]) -> int:
    """Return the exit code of an ended run, as `tartlet run` would give it.

    Example:
        >>> exit_of({"phase": "Succeeded"}), exit_of({"phase": "Failed", "error": {"number": 403}})
        (0, 3)
    """
    if status.get("phase") != "Failed":
        return 0
    number = int((status.get("error") or {}).get("number") or 0)
    return exits.SYSTEM if number >= _FIRST_SYSTEM_NUMBER else exits.PROGRAM_FAILED


def print_error(status: dict[str, Any]) -> None:
    """Print a failed run's standard error and its traceback, or else its error with the remedy."""
    error = status.get("error")
    if error:
        if error.get("stderr"):
            sys.stderr.write(error["stderr"].rstrip("\n") + "\n")
        traceback = error.get("traceback") if status.get("outputKept") is not False else ""
        text = traceback or f"{error['name']}: {error.get('message', '')}\n{error.get('remedy', '')}"
        sys.stderr.write(text.rstrip("\n") + "\n")
