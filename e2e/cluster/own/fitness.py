"""Tells, before anything is built, whether this machine can run a cluster of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from e2e.cluster.artifacts import images, requirements, toolchain
from e2e.cluster.artifacts.requirements import SYSTEM_PATH, Unfit, last_line
from e2e.cluster.layout import COMPONENTS, DEBIAN, Layout, kubernetes_version
from e2e.cluster.own import cgroups

MIRROR = f"http://deb.debian.org/debian/dists/{DEBIAN}/Release"
_ANSWER_S = 60
_UNSHARE = ("unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child=SIGKILL")

TRIED = {
    "namespaces": "true",
    "mounts": "mount --make-rshared / && mount -t tmpfs tmpfs merged && umount merged",
    "overlay file systems": "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged",
    "network bridges": "ip link add node type bridge && ip link add one type veth peer name other",
    "iptables": "iptables -t nat -L -n",
}
"""The first commands of a cluster, by the feature that they need; each runs in namespaces that end with it."""


def ensure(layout: Layout) -> None:
    """Checks everything within seconds.

    Raises:
        Unfit: The machine lacks something; the message is one line.
    """
    requirements.ensure()
    sandbox(layout.cache)
    control_groups()
    if not toolchain.is_built(layout):
        modules()
    if not images.has_base(layout):
        answers(MIRROR)


def sandbox(cache: Path) -> None:
    """Tries to make namespaces, mounts and a network.

    Raises:
        Unfit: The kernel or the surrounding container doesn't allow one of them.
    """
    cache.mkdir(parents=True, exist_ok=True)
    search = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}
    with tempfile.TemporaryDirectory(dir=cache) as place:
        for name in ("lower", "upper", "work", "merged"):
            (Path(place) / name).mkdir()
        for what, command in TRIED.items():
            ask = [*_UNSHARE, "sh", "-c", command]
            done = subprocess.run(ask, cwd=place, env=search, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unfit(f"this machine allows no {what}: {last_line(done.stderr)}")


def control_groups(mount: Path = cgroups.MOUNT) -> None:
    """Makes and removes the pods' control group, unless the group exists.

    Raises:
        Unfit: The group can't be made.
    """
    try:
        if not cgroups.leftovers(mount):
            cgroups.make(mount)
            cgroups.remove(mount)
    except OSError as e:
        raise Unfit(f"this machine allows no control groups: {e}") from None


def modules() -> None:
    """Checks that Go can get the modules of Kubernetes.

    Raises:
        Unfit: Go is too old, or can't get the modules.
    """
    for ask, where in (
        (("list", "-m"), COMPONENTS),  # fails if Go is older than go.mod asks for and may not fetch a newer one
        (("list", "-m", f"k8s.io/kubernetes@{kubernetes_version()}"), Path("/")),
    ):
        try:
            done = subprocess.run(
                [requirements.go(), *ask], cwd=where, capture_output=True, text=True, check=False, timeout=_ANSWER_S
            )
        except subprocess.TimeoutExpired:
            raise Unfit(f"Go got no answer about Kubernetes' modules within {_ANSWER_S} s") from None
        if done.returncode != 0:
            raise Unfit(f"Go can't have Kubernetes' modules: {last_line(done.stderr)}")


def answers(url: str, timeout_s: float = 20) -> None:
    """Checks that a URL answers.

    Raises:
        Unfit: No answer comes.
    """
    try:
        urllib.request.urlopen(url, timeout=timeout_s).close()  # noqa: S310 - our own
    except urllib.error.HTTPError as e:
        e.close()  # an HTTP error is an answer too
    except OSError as e:
        raise Unfit(f"{url} doesn't answer: {getattr(e, 'reason', e)}") from None
