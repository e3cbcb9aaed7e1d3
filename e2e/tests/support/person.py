"""A person at a terminal, with `tartlet` and its kubectl plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from e2e.cluster.kube import Kube
from e2e.cluster.layout import ROOT
from e2e.cluster.provider import Own
from e2e.tests.conftest import RELEASE


@dataclass
class Person:
    """A person with a kubeconfig."""

    kube: Kube
    name: str
    directory: Path

    def may(self, role: str) -> None:
        """Makes a service account with a role of the release, and writes its kubeconfig."""
        kube = self.kube
        kube("create", "serviceaccount", self.name)
        full = f"tartlet:{kube.namespace}:{RELEASE}:{role}"
        whom = f"--serviceaccount={kube.namespace}:{self.name}"
        kube("create", "rolebinding", self.name, f"--clusterrole={full}", whom)
        self.configure([{"name": self.name, "user": {"token": kube("create", "token", self.name).strip()}}])

    def configure(self, users: list[dict[str, Any]] | None = None) -> None:
        """Writes a kubeconfig; without users, that of the administrator."""
        config = json.loads(self.kube("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        config["users"] = users or config["users"]
        context = config["contexts"][0]
        context["context"] |= {"user": config["users"][0]["name"], "namespace": self.kube.namespace}
        config["current-context"] = context["name"]
        self.config.write_text(json.dumps(config))

    @property
    def config(self) -> Path:
        """Returns the text of a kubeconfig."""
        return self.directory / "config"

    def start(
        self,
        command: Sequence[str],
        directory: Path = ROOT,
        *,
        stdin: int | None = None,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Returns a command in the cluster's network; it finds `tartlet` and its plugin as in an active environment.

        `directory` is where it runs; `stdin` and `stderr` are as for `subprocess.Popen`.
        """
        cluster = self.kube.cluster
        inside = cluster.enter("net") if isinstance(cluster, Own) else []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": str(self.config),
            "TARTLET_RUN_DIR": str(self.directory / "run"),
        }
        return subprocess.Popen(
            [*inside, *command], env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=directory
        )

    def tartlet(self, *arguments: str) -> tuple[int, str, str]:
        """Runs `tartlet` to its end and returns exit code, output and errors."""
        return end(self.start(["tartlet", *arguments]))

    def kubectl(self, *arguments: str) -> tuple[int, str, str]:
        """Runs kubectl with its plugins to its end."""
        found = [a for a in self.kube.cluster.kubectl() if not a.startswith("--kubeconfig")]
        inside = found.index("--") + 1 if "--" in found else 0
        return end(self.start([*found[inside:], *arguments]))

    def running(self, prefix: str) -> list[str]:
        """Returns the names of running programs with this prefix, from `kubectl tartlet top`."""
        code, out, err = self.kubectl("tartlet", "top", "--once", "--json")
        assert code == 0, err
        return [p["name"] for p in json.loads(out)["programs"] if p["name"].startswith(prefix)]


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Returns exit code, output and errors of a command."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def person(kube: Kube, role: str, directory: Path) -> Iterator[Person]:
    """Yields a person with a role."""
    made = Person(kube, f"cli-{role}", directory)
    made.may(role)
    yield made
    kube("delete", f"serviceaccount/{made.name}", f"rolebinding/{made.name}")


def running(kube: Kube, prefix: str) -> list[str]:
    """Returns the names of a release's running programs with this prefix, as the administrator sees them."""
    with TemporaryDirectory() as directory:
        administrator = Person(kube, "administrator", Path(directory))
        administrator.configure()
        return administrator.running(prefix)
