"""Runs kubectl and Helm for the tests; error messages contain the cluster's answer."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Cluster

Object = dict[str, Any]


class Refused(RuntimeError):
    """kubectl or Helm failed; the message is what they printed."""


class Kube:
    """One namespace of a cluster."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self._kubectl = cluster.kubectl()

    def __call__(self, *arguments: str, text: str | None = None, timeout_s: float = 120) -> str:
        """Runs kubectl and returns its output.

        Raises:
            Refused: The command failed.
        """
        return _output([*self._kubectl, "-n", self.namespace, *arguments], text, timeout_s)

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None, timeout_s: float = 300) -> str:
        """Runs Helm with values and returns its output.

        Raises:
            Refused: The command failed.
        """
        given = ["--values", "-"] if values is not None else []
        text = None if values is None else yaml.safe_dump(dict(values))
        return _output([*self.cluster.helm(), "-n", self.namespace, *arguments, *given], text, timeout_s)

    def apply(self, *objects: Object) -> None:
        """Applies objects."""
        self("apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def apply_file(self, name: str) -> None:
        """Applies a file of the repository."""
        self("apply", "-f", str(ROOT / name))

    def get(self, what: str, *arguments: str) -> Object:
        """Returns an object or a list of objects."""
        found: Object = json.loads(self("get", what, "-o", "json", *arguments))
        return found

    def items(self, what: str, *arguments: str) -> list[Object]:
        """Returns the objects of a list."""
        found: list[Object] = self.get(what, *arguments)["items"]
        return found

    def wait(self, what: str, condition: str, timeout_s: float = 60) -> None:
        """Waits until an object's condition is True; the error after the time limit shows the object's status."""
        try:
            self("wait", what, f"--for=condition={condition}", f"--timeout={timeout_s:.0f}s", timeout_s=timeout_s + 10)
        except Refused as e:
            status = json.dumps(self.get(what).get("status"), indent=1)
            raise Refused(f"{e}\n{what}: {status}\n{self('get', 'pods,events')}") from None


def _output(command: list[str], text: str | None, timeout_s: float) -> str:
    stdin = {"input": text} if text is not None else {"stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **stdin)
    if done.returncode != 0:
        raise Refused(f"{' '.join(command[-8:])} failed with status {done.returncode}: {done.stderr}{done.stdout}")
    output: str = done.stdout
    return output


@contextmanager
def step(name: str) -> Iterator[None]:
    """Prints how long a step took."""
    start = time.monotonic()
    yield
    print(f"  {name}: {time.monotonic() - start:.1f} s", flush=True)


def until(holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Waits until a condition holds.

    Raises:
        TimeoutError: The condition didn't hold in time.
    """
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.25)


def condition(obj: Object, kind: str) -> Object:
    """Returns a condition of an object; empty if the object has no condition of this type."""
    conditions: list[Object] = obj.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})
