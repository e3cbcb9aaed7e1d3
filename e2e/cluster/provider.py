"""Which cluster the tests use: the one that KUBECONFIG names, else kind's, else one of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from e2e.cluster.artifacts import images, requirements, toolchain
from e2e.cluster.artifacts.images import Image
from e2e.cluster.artifacts.requirements import Unfit, last_line
from e2e.cluster.layout import ROOT, Layout, default_layout
from e2e.cluster.own import fitness
from e2e.cluster.own.cluster import Failed, OwnCluster, stage

KIND_NAME = "tartlet-e2e"
KIND_NODE = "kindest/node:v1.36.3"
_KIND_IMAGE = f"{images.NAME}:e2e"
_NO_IMAGE = "set TARTLET_E2E_IMAGE to an image of the Dockerfile's target `base` that the cluster can pull"


class Cluster(Protocol):
    """What the tests need of a cluster."""

    def ensure(self) -> None:
        """Checks, before anything is built, that it can be had here.

        Raises:
            Unfit: It can't; the message is one line.
        """

    def build(self) -> None:
        """Builds what is built once, the image included; this may take minutes."""

    def up(self) -> None:
        """Brings it up, unless it is up."""

    def is_up(self) -> bool:
        """Whether it is up."""

    def down(self) -> None:
        """Brings it down, if it is the harness's to bring down."""

    def kubectl(self) -> list[str]:
        """The beginning of a kubectl command."""

    def helm(self) -> list[str]:
        """The beginning of a Helm command."""

    def within(self) -> list[str]:
        """The beginning of any command: it reaches the cluster, and KUBECONFIG tells it which."""

    def image(self) -> Image:
        """Tartlet's image, such that pods find it."""


class Own(OwnCluster):
    """A cluster of its own, with the image that this machine builds."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        super().__init__(layout)
        self.environment = environment

    def ensure(self) -> None:
        """Tries what a cluster is made of; in CI, installs Debian's packages."""
        if not self.is_up():
            fitness.ensure(self.layout)

    def build(self) -> None:
        """Kubernetes, the other tools and the image, beside each other: the one computes, the others download."""
        requirements.ensure()
        image = _beside("image-file") if not self._named() else nullcontext()
        with image, _beside("tools"), stage("components"):
            toolchain.kubernetes(self.layout)

    def image_file(self) -> Image:
        """The image, in a file; `TARTLET_E2E_IMAGE` names an earlier one."""
        there = self._named()
        return images.built(self.layout, there) if there else images.tartlet(self.layout)

    def _named(self) -> str:
        return self.environment.get("TARTLET_E2E_IMAGE", "")

    def image(self) -> Image:
        """Builds the image and loads it."""
        image = self.image_file()
        self.load(image)
        return image


class Given:
    """A cluster that somebody else has; `TARTLET_E2E_IMAGE` says where its nodes find Tartlet's image."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        self.layout, self.environment = layout, environment

    def ensure(self) -> None:
        """Asks it, and whether an image is named."""
        if shutil.which("kubectl") is None:
            raise Unfit("KUBECONFIG is set, and kubectl is not installed")
        if not self.environment.get("TARTLET_E2E_IMAGE"):
            raise Unfit(_NO_IMAGE)
        asked = subprocess.run(
            [*self.kubectl(), "get", "--raw", "/readyz"], capture_output=True, text=True, check=False
        )
        if asked.returncode != 0:
            raise Unfit(f"the cluster that KUBECONFIG names doesn't answer: {last_line(asked.stderr)}")

    def build(self) -> None:
        """Helm, if it isn't there."""
        toolchain.helm(self.layout)

    def up(self) -> None:
        """It is up."""

    def is_up(self) -> bool:
        """It is."""
        return True

    def down(self) -> None:
        """It stays up, as one of the harness's own may."""
        own = "the harness's own goes with `env -u KUBECONFIG make cluster-down`"
        print(f"KUBECONFIG names somebody else's cluster, which is left up; {own}", file=sys.stderr)

    def kubectl(self) -> list[str]:
        """The machine's own kubectl; it reads KUBECONFIG itself, which may name several files."""
        return [shutil.which("kubectl") or "kubectl"]

    def helm(self) -> list[str]:
        """Helm, the same way."""
        return [str(toolchain.helm(self.layout))]

    def within(self) -> list[str]:
        """Nothing: KUBECONFIG is there."""
        return []

    def image(self) -> Image:
        """The image that the environment names.

        Raises:
            Unfit: It names none.
        """
        name = self.environment.get("TARTLET_E2E_IMAGE")
        if not name:
            raise Unfit(_NO_IMAGE)
        return Image(name, Path())


class Kind:
    """A cluster of kind's, in Docker."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.config = layout.cache / "kind.kubeconfig"

    def ensure(self) -> None:
        """Asks for the one program that neither kind nor Docker brings."""
        if shutil.which("kubectl") is None:
            raise Unfit("kind is installed, and kubectl is not")

    def build(self) -> None:
        """Helm and the image."""
        toolchain.helm(self.layout)
        subprocess.run(["docker", "build", "--target", "base", "-t", _KIND_IMAGE, str(ROOT)], check=True)

    def up(self) -> None:
        """Makes it, unless it is there; one that can't be made whole is deleted."""
        if self.is_up():
            return
        self.config.parent.mkdir(parents=True, exist_ok=True)
        create = ("kind", "create", "cluster", "--name", KIND_NAME, "--image", KIND_NODE, "--wait", "120s")
        try:
            subprocess.run([*create, "--kubeconfig", str(self.config)], check=True)
        except BaseException:  # Ctrl-C too
            self.down()
            raise

    def is_up(self) -> bool:
        """Whether kind knows it, and we its address."""
        return self.config.exists() and KIND_NAME in _output("kind", "get", "clusters").split()

    def down(self) -> None:
        """Deletes it."""
        subprocess.run(["kind", "delete", "cluster", "--name", KIND_NAME, "--kubeconfig", str(self.config)], check=True)
        self.config.unlink(missing_ok=True)

    def kubectl(self) -> list[str]:
        """The machine's own kubectl."""
        return ["kubectl", f"--kubeconfig={self.config}"]

    def helm(self) -> list[str]:
        """Helm."""
        return [str(toolchain.helm(self.layout)), f"--kubeconfig={self.config}"]

    def within(self) -> list[str]:
        """It is reached from everywhere."""
        return ["env", f"KUBECONFIG={self.config}"]

    def image(self) -> Image:
        """Builds the image with Docker and loads it."""
        self.build()
        subprocess.run(["kind", "load", "docker-image", _KIND_IMAGE, "--name", KIND_NAME], check=True)
        return Image(_KIND_IMAGE, Path())


def docker_works() -> bool:
    """Whether there are kind and a Docker that answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def choose(
    environment: Mapping[str, str] = os.environ, docker: Callable[[], bool] = docker_works, layout: Layout | None = None
) -> Cluster:
    """The cluster to use here."""
    layout = layout or default_layout(environment)
    if environment.get("KUBECONFIG"):
        return Given(layout, environment)
    return Kind(layout) if docker() else Own(layout, environment)


@contextmanager
def _beside(command: str) -> Iterator[None]:
    """Runs a command of ours as a process beside a block, and waits for it.

    Raises:
        Failed: It failed; it has said why.
    """
    process = subprocess.Popen([sys.executable, "-m", "e2e.cluster", command], cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        yield
        if process.wait() != 0:
            raise Failed(f"`python -m e2e.cluster {command}` failed with status {process.returncode}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
