"""The first process in the cluster's namespaces: prepares them, starts the components, restarts those that end.

Run as `unshare --mount --net --pid --ipc --fork python -m e2e.cluster.own.init CACHE BINARY`. When it ends, for
whatever reason, the kernel ends every process in its PID namespace, and the mounts and networks go with them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from e2e.cluster.layout import Layout, write_whole
from e2e.cluster.own import configs
from e2e.cluster.own.configs import Component
from e2e.cluster.own.processes import Process

_CTR = ("ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io")
_API_TIMEOUT_S = 60.0
_RESTART_S = 0.5


class Init:
    """Starts, restarts and ends the components' processes in order."""

    def __init__(self, layout: Layout, binary: Path) -> None:
        self.layout, self.binary = layout, binary
        # kept, because `subprocess` itself reaps forgotten processes, and their status would be lost
        self.running: dict[str, tuple[subprocess.Popen[bytes], Component]] = {}
        self.due: list[tuple[float, Component]] = []
        self.stopping = False

    def run(self) -> None:
        """Starts all components and waits for SIGTERM."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        state = self.layout.state
        outside().write(self.layout.first)
        mounts(self.layout)
        network()
        containers = Component("containerd", ["containerd", "--config", str(state / "containerd.toml")])
        for component in (configs.etcd(state), configs.api_server(self.binary, state), containers):
            self._start(component)
        self._wait_for_api()
        for make in (configs.controller_manager, configs.scheduler, configs.node, configs.proxy):
            self._start(make(self.binary, state))
        self._tell()
        while not self.stopping:
            self._reap()
            now = time.monotonic()
            for component in [c for at, c in self.due if at <= now]:
                self._start(component)
                self._tell()
            self.due = [(at, c) for at, c in self.due if at > now]
            time.sleep(0.1)
        self._down()

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _start(self, component: Component) -> None:
        with (self.layout.logs / f"{component.name}.log").open("ab") as log:
            process = subprocess.Popen(component.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running[component.name] = process, component

    def _tell(self) -> None:
        """Writes the process number, in this namespace, of each component."""
        components = {name: process.pid for name, (process, _) in self.running.items()}
        write_whole(self.layout.state / "components.json", json.dumps(components))

    def _reap(self) -> None:
        """Waits for ended processes, among them orphans of pods."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for name, (process, component) in list(self.running.items()):
                if process.pid == pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    del self.running[name]
                    self.due.append((time.monotonic() + _RESTART_S, component))
                    print(f"{name} ended with status {process.returncode}", flush=True)

    def _wait_for_api(self) -> None:
        state = self.layout.state
        tls = ssl.create_default_context(cafile=str(state / "pki" / "ca.crt"))
        token = json.loads((state / "tokens.json").read_text())["admin"]
        url = f"https://{configs.NODE_ADDRESS}:{configs.API_PORT}/readyz"
        ask = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        end = time.monotonic() + _API_TIMEOUT_S
        while time.monotonic() < end and not self.stopping:
            self._reap()
            if self.due:
                raise SystemExit(f"{self.due[0][1].name} ended while it started; see its log")
            try:
                urllib.request.urlopen(ask, context=tls, timeout=2).close()  # noqa: S310 - our own
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise SystemExit("the API server wasn't ready in time; see its log")

    def _down(self) -> None:
        """Ends all components but containerd, then removes the containers from containerd's store."""
        for name, (process, _) in self.running.items():
            if name != "containerd":
                process.kill()
        if "containerd" not in self.running:
            return
        names = _ctr("containers", "ls", "-q").split()
        if names:
            _ctr("tasks", "rm", "--force", *names)
            _ctr("containers", "rm", *names)
        clean = not _ctr("containers", "ls", "-q").split()
        containerd = self.running["containerd"][0]
        containerd.terminate()
        containerd.wait()
        if clean:
            (self.layout.containers / "clean").touch()


def _ctr(*arguments: str) -> str:
    return subprocess.run([*_CTR, *arguments], capture_output=True, text=True, timeout=30, check=False).stdout


def outside() -> Process:
    """Returns this process with its number outside the PID namespace; /proc is still the machine's."""
    return Process.of(int(Path("/proc/self").readlink().name))


def mounts(layout: Layout) -> None:
    """Mounts a new /proc, and new directories where components write outside their own directories."""
    _run("mount", "--make-rshared", "/")
    _run("mount", "-t", "proc", "proc", "/proc")
    logs = layout.logs / "pods"
    logs.mkdir()
    _run("mount", "--bind", str(logs), "/var/log")
    # /var/lib/kubelet: the kubelet keeps a socket there, independent of its root
    for place in ("/run", "/var/lib/cni", "/var/lib/kubelet"):
        Path(place).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
    for place in ("containerd", "netns", "lock"):
        (Path("/run") / place).mkdir()


def network() -> None:
    """Makes a bridge with the node's address; no route leaves this namespace."""
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "node", "type", "bridge")
    _run("ip", "address", "add", f"{configs.NODE_ADDRESS}/24", "dev", "node")
    _run("ip", "link", "set", "node", "up")
    _run(
        "ip", "route", "add", "default", "via", configs.NODE_ADDRESS, "dev", "node"
    )  # the kubelet refuses to start without a default route
    for key in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        file = Path("/proc/sys") / key
        if file.exists():
            file.write_text("1")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    """Prepares the namespaces and runs the components until SIGTERM."""
    cache, binary = sys.argv[1:]
    if os.getpid() != 1:
        raise SystemExit("this is the first process of a PID namespace, and nothing else: run `make cluster-up`")
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
    if shutil.which("containerd") is None:
        raise SystemExit("containerd isn't installed")
    Init(Layout(Path(cache)), Path(binary)).run()


if __name__ == "__main__":
    main()
