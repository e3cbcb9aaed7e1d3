"""Which cluster the tests use: the one that KUBECONFIG names, else kind's, else one of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from e2e.cluster import images, toolchain
from e2e.cluster.images import Image
from e2e.cluster.layout import ROOT, Layout, default_layout
from e2e.cluster.own import OwnCluster

KIND_NAME = "tartlet-e2e"
KIND_NODE = "kindest/node:v1.36.3"


class Cluster(Protocol):
    """What the tests need of a cluster."""

    def up(self) -> None:
        """Brings it up, unless it is up."""

    def down(self) -> None:
        """Brings it down, if it is the harness's to bring down."""

    def kubectl(self) -> list[str]:
        """The beginning of a kubectl command."""

    def helm(self) -> list[str]:
        """The beginning of a Helm command."""

    def image(self) -> Image:
        """Tartlet's image, such that pods find it."""


class Own(OwnCluster):
    """A cluster of its own, with the image that this machine builds."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        super().__init__(layout)
        self.environment = environment

    def image(self) -> Image:
        """Builds the image and loads it; `TARTLET_E2E_IMAGE` names an earlier one."""
        there = self.environment.get("TARTLET_E2E_IMAGE")
        image = images.built(self.layout, there) if there else images.tartlet(self.layout)
        self.load(image)
        return image


class Given:
    """A cluster that somebody else has; `TARTLET_E2E_IMAGE` says where its nodes find Tartlet's image."""

    def __init__(self, layout: Layout, environment: Mapping[str, str]) -> None:
        self.layout, self.environment = layout, environment

    def up(self) -> None:
        """It is up."""

    def down(self) -> None:
        """It stays up."""

    def kubectl(self) -> list[str]:
        """The machine's own kubectl."""
        return [shutil.which("kubectl") or "kubectl", f"--kubeconfig={self.environment['KUBECONFIG']}"]

    def helm(self) -> list[str]:
        """Helm."""
        return [str(toolchain.helm(self.layout)), f"--kubeconfig={self.environment['KUBECONFIG']}"]

    def image(self) -> Image:
        """The image that the environment names.

        Raises:
            ValueError: It names none.
        """
        name = self.environment.get("TARTLET_E2E_IMAGE")
        if not name:
            raise ValueError(
                "set TARTLET_E2E_IMAGE to an image of the Dockerfile's target `base` that the cluster can pull"
            )
        return Image(name, Path())


class Kind:
    """A cluster of kind's, in Docker."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.config = layout.cache / "kind.kubeconfig"

    def up(self) -> None:
        """Makes it, unless it is there."""
        self.config.parent.mkdir(parents=True, exist_ok=True)
        if KIND_NAME not in _output("kind", "get", "clusters").split():
            create = ("kind", "create", "cluster", "--name", KIND_NAME, "--image", KIND_NODE, "--wait", "120s")
            subprocess.run([*create, "--kubeconfig", str(self.config)], check=True)

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

    def image(self) -> Image:
        """Builds the image with Docker and loads it."""
        name = f"{images.NAME}:e2e"
        subprocess.run(["docker", "build", "--target", "base", "-t", name, str(ROOT)], check=True)
        subprocess.run(["kind", "load", "docker-image", name, "--name", KIND_NAME], check=True)
        return Image(name, Path())


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


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
