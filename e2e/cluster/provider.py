"""Chooses the cluster of the tests: the one that KUBECONFIG names, else kind's, else one of this machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
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
    """The operations that the tests need from a cluster."""

    def ensure(self) -> None:
        """Checks, before anything is built, that this machine can have the cluster.

        Raises:
            Unfit: The machine can't; the message is one line.
        """

    def build(self) -> None:
        """Builds components and image, unless the cache has them; this may take minutes."""

    def up(self) -> None:
        """Brings the cluster up, unless it is up."""

    def is_up(self) -> bool:
        """Whether the cluster is up."""

    def down(self) -> None:
        """Brings the cluster down, if the harness made it."""

    def kubectl(self) -> list[str]:
        """Returns the first words of a kubectl command."""

    def helm(self) -> list[str]:
        """Returns the first words of a Helm command."""

    def within(self) -> list[str]:
        """Returns the first words of any command; the command reaches the cluster and finds KUBECONFIG set."""

    def image(self) -> Image:
        """Makes Tartlet's image available to pods and returns it."""

    def next_image(self) -> Image:
        """Makes an image of a next release available to pods and returns it; see `images.next_release`."""

    def redis(self) -> str:
        """Makes an image of Redis available to pods and returns its name; "" means the chart's own."""


class Own(OwnCluster):
    """A cluster that this machine runs, with an image that this machine builds."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        super().__init__(layout)
        self.environment = environment

    def ensure(self) -> None:
        """Tries the features that a cluster needs; in CI, installs Debian's packages."""
        if not self.is_up():
            fitness.ensure(self.layout)

    def build(self) -> None:
        """Builds Kubernetes, the other tools and the image side by side: the first computes, the others download."""
        requirements.ensure()
        image = _beside("image-file") if not self._named() else nullcontext()
        with image, _beside("tools"), stage("components"):
            toolchain.kubernetes(self.layout)

    def image_file(self) -> Image:
        """Builds the image in a file; `TARTLET_E2E_IMAGE` names an image that was built earlier."""
        there = self._named()
        return images.built(self.layout, there) if there else images.tartlet(self.layout)

    def _named(self) -> str:
        return self.environment.get("TARTLET_E2E_IMAGE", "")

    def image(self) -> Image:
        """Builds the image and loads it."""
        image = self.image_file()
        self.load(image)
        return image

    def next_image(self) -> Image:
        """Writes the image, loads it, and removes the file."""
        with tempfile.TemporaryDirectory(dir=self.layout.cache) as directory:
            image = images.next_release(self.image_file(), Path(directory) / "next.tar")
            self.load(image)
        return image

    def redis(self) -> str:
        """Packs this machine's Redis, loads it, and returns the image's name."""
        image = images.redis(self.layout)
        self.load(image)
        return image.name


class Given:
    """An existing cluster; `TARTLET_E2E_IMAGE` names Tartlet's image for its nodes."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        self.layout, self.environment = layout, environment

    def ensure(self) -> None:
        """Checks that the cluster answers and that an image is named."""
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
        """Builds Helm, if the machine has none."""
        toolchain.helm(self.layout)

    def up(self) -> None:
        """No-op: an existing cluster is up."""

    def is_up(self) -> bool:
        """Always true."""
        return True

    def down(self) -> None:
        """Leaves the cluster up, and says so."""
        own = "the harness's own goes with `env -u KUBECONFIG make cluster-down`"
        print(f"KUBECONFIG names somebody else's cluster, which is left up; {own}", file=sys.stderr)

    def kubectl(self) -> list[str]:
        """Returns the machine's kubectl, which reads KUBECONFIG itself; KUBECONFIG may name several files."""
        return [shutil.which("kubectl") or "kubectl"]

    def helm(self) -> list[str]:
        """Returns Helm, which reads KUBECONFIG itself."""
        return [str(toolchain.helm(self.layout))]

    def within(self) -> list[str]:
        """Returns no words: KUBECONFIG is set already."""
        return []

    def image(self) -> Image:
        """Returns the image that the environment names.

        Raises:
            Unfit: The environment names no image.
        """
        name = self.environment.get("TARTLET_E2E_IMAGE")
        if not name:
            raise Unfit(_NO_IMAGE)
        return Image(name, Path())

    def next_image(self) -> Image:
        """Returns the image that `TARTLET_E2E_NEXT_IMAGE` names, else the present one."""
        name = self.environment.get("TARTLET_E2E_NEXT_IMAGE")
        return Image(name, Path()) if name else self.image()

    def redis(self) -> str:
        """Returns "": the nodes pull the chart's own image."""
        return ""


class Kind:
    """A cluster that kind runs in Docker."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.config = layout.cache / "kind.kubeconfig"

    def ensure(self) -> None:
        """Checks that kubectl is installed, which neither kind nor Docker brings."""
        if shutil.which("kubectl") is None:
            raise Unfit("kind is installed, and kubectl is not")

    def build(self) -> None:
        """Builds Helm and the image."""
        toolchain.helm(self.layout)
        subprocess.run(["docker", "build", "--target", "base", "-t", _KIND_IMAGE, str(ROOT)], check=True)

    def up(self) -> None:
        """Makes the cluster, unless it exists; deletes a cluster that can't be completed."""
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
        """Whether kind knows the cluster and its kubeconfig is here."""
        return self.config.exists() and KIND_NAME in _output("kind", "get", "clusters").split()

    def down(self) -> None:
        """Deletes the cluster."""
        subprocess.run(["kind", "delete", "cluster", "--name", KIND_NAME, "--kubeconfig", str(self.config)], check=True)
        self.config.unlink(missing_ok=True)

    def kubectl(self) -> list[str]:
        """Returns the machine's kubectl with the cluster's kubeconfig."""
        return ["kubectl", f"--kubeconfig={self.config}"]

    def helm(self) -> list[str]:
        """Returns Helm with the cluster's kubeconfig."""
        return [str(toolchain.helm(self.layout)), f"--kubeconfig={self.config}"]

    def within(self) -> list[str]:
        """Returns words that set KUBECONFIG; the cluster can be reached from any network."""
        return ["env", f"KUBECONFIG={self.config}"]

    def image(self) -> Image:
        """Builds the image with Docker and loads it."""
        self.build()
        self._load(_KIND_IMAGE)
        return Image(_KIND_IMAGE, Path())

    def next_image(self) -> Image:
        """Tags the image anew and loads it."""
        name = f"{_KIND_IMAGE}-next"
        subprocess.run(["docker", "tag", _KIND_IMAGE, name], check=True)
        self._load(name)
        return Image(name, Path())

    def _load(self, name: str) -> None:
        subprocess.run(["kind", "load", "docker-image", name, "--name", KIND_NAME], check=True)

    def redis(self) -> str:
        """Returns "": the nodes pull the chart's own image."""
        return ""


def docker_works() -> bool:
    """Whether kind is installed and Docker answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def choose(
    environment: Mapping[str, str] = os.environ, docker: Callable[[], bool] = docker_works, layout: Layout | None = None
) -> Cluster:
    """Returns the cluster to use on this machine."""
    layout = layout or default_layout(environment)
    if environment.get("KUBECONFIG"):
        return Given(layout, environment)
    return Kind(layout) if docker() else Own(layout, environment)


@contextmanager
def _beside(command: str) -> Iterator[None]:
    """Runs a command of this package beside the block, and waits for the command's end.

    Raises:
        Failed: The command failed; it has printed why.
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
