"""Runs a cluster on this machine, in namespaces of its own."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.artifacts import images, requirements, toolchain
from e2e.cluster.artifacts.images import Image
from e2e.cluster.layout import ROOT, Layout, write_whole
from e2e.cluster.own import cgroups, configs, kernel, pki
from e2e.cluster.own.processes import Process, in_namespace
from tools.testing.runs import uninterrupted

_UP_TIMEOUT_S = 90.0
_DOWN_TIMEOUT_S = 25.0
_KILLED_TIMEOUT_S = 15.0
_CTR = ("ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io")


class Failed(RuntimeError):
    """The cluster didn't start, or left something behind."""


class OwnCluster:
    """Kubernetes as processes of this machine; `up` and `down` may be called in any state."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._started: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Brings the cluster up, unless it is up.

        Raises:
            Failed: The cluster didn't start; it is down again.
            requirements.Unfit: This machine can't run a cluster.
        """
        if self.is_up():
            if (checkout := self._checkout()) != ROOT:
                print(
                    f"== this cluster was started by the checkout {checkout}: whoever uses it there meets what you do "
                    "here; `down` ends it for both",
                    flush=True,
                )
            return
        requirements.ensure()
        with stage("build"):
            self.build_components()
        self.down()
        start = time.monotonic()
        try:
            self._start()
        except BaseException:  # Ctrl-C too
            with uninterrupted():
                self.down()
            raise
        print(f"up in {time.monotonic() - start:.1f} s; try: python -m e2e.cluster kubectl get pods -A", flush=True)

    def _checkout(self) -> Path:
        """Returns the checkout from which the running cluster was started."""
        file = self.layout.state / "checkout"
        return Path(file.read_text()) if file.exists() else ROOT

    def down(self) -> None:
        """Ends the cluster and removes all its traces except logs, built components and images.

        Raises:
            Failed: Something was left behind.
        """
        layout = self.layout
        process, first = Process.read(layout.record), Process.read(layout.first)
        namespaces = _namespaces(first) if first is not None else {}
        ending = [p for p in (first, process) if p is not None]
        if first is not None:
            first.send(
                signal.SIGTERM
            )  # the first process handles SIGTERM since it wrote its record, and ends the others in order
        if first is None or not all(each.wait(_DOWN_TIMEOUT_S) for each in ending):
            for each in (*_children(process), *ending):
                each.send(signal.SIGKILL)
        if not all(each.wait(_KILLED_TIMEOUT_S) for each in ending):
            raise Failed(f"processes {[each.pid for each in ending if each.alive()]} outlived the cluster")
        for each in _members(namespaces):  # commands that run in the cluster's network
            each.send(signal.SIGKILL)
            each.wait(_KILLED_TIMEOUT_S)
        if left := [each.pid for each in _members(namespaces)]:
            raise Failed(f"processes {left} outlived the cluster")
        if self._started is not None:
            self._started.wait(timeout=5.0)
            self._started = None
        cgroups.remove()
        kernel.put_back(layout.kernel)
        _remove(layout.state)
        layout.record.unlink(missing_ok=True)

    def is_up(self) -> bool:
        """Whether the first process runs and the API server answers."""
        process = Process.read(self.layout.record)
        if process is None or not process.alive() or not (self.layout.state / "components.json").exists():
            return False
        return self.run(*self.kubectl(), "get", "--raw", "/readyz", check=False).returncode == 0

    def enter(self, *kinds: str) -> list[str]:
        """Returns the first words of a command that is to run in the cluster's namespaces (`net`, `mount`, `pid`).

        Raises:
            Failed: No cluster is up.
        """
        process = Process.read(self.layout.record)
        children = process.children() if process is not None and process.alive() else []
        if not children:
            raise Failed("no cluster is up: run `make cluster-up`")
        # the command ends with the process that started it, so that nothing holds on to the cluster's network
        return ["setpriv", "--pdeathsig=KILL", "nsenter", f"--target={children[0]}", *(f"--{k}" for k in kinds), "--"]

    def kubectl(self) -> list[str]:
        """Returns the first words of a kubectl command, as administrator, in the cluster's network."""
        return [
            *self.enter("net"),
            str(toolchain.kubernetes(self.layout)),
            "kubectl",
            f"--kubeconfig={self.layout.kubeconfig}",
        ]

    def helm(self) -> list[str]:
        """Returns the first words of a Helm command, as administrator, in the cluster's network."""
        return [*self.enter("net"), str(toolchain.helm(self.layout)), f"--kubeconfig={self.layout.kubeconfig}"]

    def within(self) -> list[str]:
        """Returns the first words of any other command in the cluster's network, which finds kubectl and Helm too."""
        tools = self._tools_on_path()
        path = f"PATH={tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return [*self.enter("net"), "env", f"KUBECONFIG={self.layout.kubeconfig}", path]

    def _tools_on_path(self) -> Path:
        """Makes a directory with the cluster's own kubectl and Helm, and returns it."""
        tools = self.layout.cache / "path"
        kubectl = f'exec {shlex.quote(str(toolchain.kubernetes(self.layout)))} kubectl "$@"'
        helm = f'exec {shlex.quote(str(toolchain.helm(self.layout)))} "$@"'
        for name, command in (("kubectl", kubectl), ("helm", helm)):
            file, text = tools / name, f"#!/bin/sh\n{command}\n"
            if not file.exists() or file.read_text() != text:
                tools.mkdir(parents=True, exist_ok=True)
                write_whole(file, text)
            file.chmod(0o755)
        return tools

    def load(self, image: Image) -> None:
        """Imports an image into containerd's store, where pods find it."""
        known = self._ctr("images", "ls", "-q").split()
        if image.name not in known:
            self._ctr("images", "import", str(image.archive))
            self._forget_old(image, known)

    def kill(self, component: str) -> None:
        """Kills a component, which the first process then restarts."""
        pid = json.loads((self.layout.state / "components.json").read_text())[component]
        self.run(*self.enter("pid", "mount"), "kill", "-KILL", str(pid))

    def signal_container(self, container_id: str, signal_name: str) -> None:
        """Sends a signal to the first process of a container, given as in a pod's status (`containerd://...`)."""
        self._ctr("tasks", "kill", "--signal", signal_name, container_id.removeprefix("containerd://"))

    def freeze(self, container_id: str) -> None:
        """Stops all processes of a container until `thaw`."""
        self._ctr("tasks", "pause", container_id.removeprefix("containerd://"))

    def thaw(self, container_id: str) -> None:
        """Continues a frozen container."""
        self._ctr("tasks", "resume", container_id.removeprefix("containerd://"))

    def name_image(self, image: str, *names: str) -> None:
        """Gives an imported image further names."""
        for name in names:
            self._ctr("images", "tag", "--force", image, name)

    def forget_images(self, *names: str) -> None:
        """Removes names of images."""
        self._ctr("images", "rm", *names)

    def connections(self) -> str:
        """Returns the output of `conntrack -L` in the cluster's network."""
        return self.run(*self.enter("net"), "conntrack", "-L").stdout

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command and returns its output."""
        return subprocess.run(command, capture_output=True, text=True, check=check, stdin=subprocess.DEVNULL)

    def _ctr(self, *arguments: str) -> str:
        return self.run(*self.enter("mount"), *_CTR, *arguments).stdout

    def _forget_old(self, image: Image, known: Sequence[str]) -> None:
        repository = image.name.rpartition(":")[0]
        old = [name for name in known if name.startswith(f"{repository}:")]
        if old:
            self._ctr("images", "rm", *old)

    def build_components(self) -> None:
        """Builds Kubernetes, CoreDNS and Helm, unless the cache has them."""
        toolchain.kubernetes(self.layout)
        self.build_tools()

    def build_tools(self) -> None:
        """Builds CoreDNS, the pause program and Helm, unless the cache has them."""
        toolchain.helm(self.layout)
        folder = self.layout.cache / "images"
        folder.mkdir(parents=True, exist_ok=True)
        programs = (
            ("coredns", toolchain.coredns, configs.DNS_IMAGE),
            ("pause", toolchain.pause, configs.PAUSE_IMAGE),
        )
        for name, build, image in programs:
            archive = folder / archive_name(image)
            if not archive.exists():
                images.pack(archive, image, {name: build(self.layout)}, [f"/{name}"])

    def _start(self) -> None:
        layout = self.layout
        with stage("configuration"):
            self._write()
            cgroups.make()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TARTLET_E2E_CLUSTER": str(layout.cache)}
        unshare = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child=SIGKILL"]
        binary = toolchain.kubernetes(layout)
        with (layout.logs / "init.log").open("wb") as log:
            process = subprocess.Popen(
                [*unshare, sys.executable, "-m", "e2e.cluster.own.init", str(layout.cache), str(binary)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not reach the cluster, which this process ends in order
            )
        Process.of(process.pid).write(layout.record)
        self._started = process  # `down` waits for it, if this process calls `down`
        alive = self._alive(process)
        with stage("API server"):
            _until((layout.state / "components.json").exists, alive)
        with stage("images of DNS and pause"):
            for image in (configs.DNS_IMAGE, configs.PAUSE_IMAGE):
                self.load(Image(image, layout.cache / "images" / archive_name(image)))
        kubectl = self.kubectl()
        with stage("node"):
            self.run(*kubectl, "apply", "-f", str(Path(__file__).with_name("coredns.yaml")))
            node = (*kubectl, "get", f"node/{configs.NODE}", "--no-headers")
            _until(lambda: " Ready " in self.run(*node, check=False).stdout, alive)
        with stage("DNS"):
            self.run(*kubectl, "-n", "kube-system", "rollout", "status", "deploy/coredns", "--timeout=60s")

    def _alive(self, process: subprocess.Popen[bytes]) -> Callable[[], None]:
        def check() -> None:
            if process.poll() is not None:
                said = (self.layout.logs / "init.log").read_text()[-2000:]
                raise Failed(f"the cluster ended while it started:\n{said}logs: {self.layout.logs}")

        return check

    def _write(self) -> None:
        """Writes all files that the components read."""
        layout, state = self.layout, self.layout.state
        _remove(layout.logs)
        layout.logs.mkdir(parents=True)
        if not (layout.containers / "clean").exists():  # the store may list containers that are gone
            _remove(layout.containers)
        layout.containers.mkdir(exist_ok=True)
        (layout.containers / "clean").unlink(missing_ok=True)
        state.mkdir(mode=0o700)
        (state / "checkout").write_text(str(ROOT))
        kernel.note(layout.kernel)
        pki.write(state / "pki")
        tokens = {name: secrets.token_hex(16) for name in configs.USERS}
        (state / "tokens.json").write_text(json.dumps(tokens))
        (state / "tokens.csv").write_text(configs.tokens_csv(tokens))
        for name, token in tokens.items():
            (state / f"{name}.kubeconfig").write_text(configs.kubeconfig(token, state / "pki" / "ca.crt"))
        layout.kubeconfig.chmod(0o600)
        (state / "containerd.toml").write_text(configs.containerd(layout.containers, state))
        (state / "cni").mkdir()
        (state / "cni" / "10-e2e.conflist").write_text(configs.network())
        (state / "kubelet.yaml").write_text(configs.kubelet(state))
        (state / "proxy.yaml").write_text(configs.kube_proxy(state))
        (state / "resolv.conf").write_text(f"nameserver {configs.DNS_SERVICE}\n")


def archive_name(image: str) -> str:
    """Returns the file name of one of the cluster's own images."""
    return image.rpartition("/")[2].replace(":", "-") + ".tar"


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Prints how long a step took."""
    start = time.monotonic()
    yield
    print(f"== {name}: {time.monotonic() - start:.1f} s", flush=True)


def _until(ready: Callable[[], bool], alive: Callable[[], None]) -> None:
    end = time.monotonic() + _UP_TIMEOUT_S
    while not ready():
        alive()
        if time.monotonic() > end:
            raise Failed(f"the cluster wasn't up within {_UP_TIMEOUT_S:.0f} s")
        time.sleep(0.1)


def _children(process: Process | None) -> list[Process]:
    """Returns the running processes that the cluster started."""
    return _running(process.children() if process is not None else ())


def _running(pids: Iterable[int]) -> list[Process]:
    """Returns those of these processes that still run."""
    found = []
    for pid in sorted(set(pids)):
        try:
            process = Process.of(pid)
        except ProcessLookupError:
            continue
        if process.alive():
            found.append(process)
    return found


def _members(namespaces: dict[str, int]) -> list[Process]:
    """Returns the processes in these namespaces."""
    return _running(pid for kind, inode in namespaces.items() for pid in in_namespace(kind, inode))


def _namespaces(first: Process) -> dict[str, int]:
    """Returns the cluster's namespaces by kind while its first process runs; later the kernel reuses the numbers."""
    found = {}
    for kind in ("net", "pid", "mnt"):
        try:
            inode = Path(f"/proc/{first.pid}/ns/{kind}").stat().st_ino
        except OSError:
            continue
        if first.alive() and inode != Path(f"/proc/self/ns/{kind}").stat().st_ino:
            found[kind] = inode
    return found


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
