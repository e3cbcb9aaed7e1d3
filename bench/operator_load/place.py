"""Where the operator is measured: a real API server with its etcd, control, a runtime with a fake engine, a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.product.operator import ApiServer, started
from e2e.cluster.artifacts.toolchain import kubernetes
from e2e.cluster.layout import default_layout

CRDS = Path(__file__).resolve().parents[2] / "crds"
_READING = frozenset({"GET", "LIST", "WATCH", "CONNECT"})
_OURS = frozenset({"inferlets", "enginepools", "inferletruns", "events"})
_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def compile_once(directory: Path) -> None:
    """Have the processes find their modules compiled, as they do where they are installed."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(directory)
    subprocess.run([sys.executable, "-m", "tartlet_operator", "--help"], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """etcd and an API server that knows our kinds; the binary is built where neither TARTLET_K8S nor a cache has it."""
    if not os.environ.get("TARTLET_K8S"):
        os.environ["TARTLET_K8S"] = str(kubernetes(default_layout()))
    with started(CRDS) as server:
        yield server


@contextmanager
def holding_a_stream(control: str) -> Iterator[int]:
    """A process as quiet as the operator at rest, that does nothing else: what gRPC's own threads take; its id."""
    with subprocess.Popen([sys.executable, "-m", "bench.operator_load.idle_stream", control]) as child:
        try:
            yield child.pid
        finally:
            child.terminate()


def sample(text: str, name: str, **labels: str) -> float:
    """A metric's value in a page of metrics, summed over those that have these labels."""
    total = 0.0
    for found, given, value in _SAMPLE.findall(text):
        if found == name and labels.items() <= dict(_LABEL.findall(given)).items():
            total += float(value)
    return total


def writes(server: ApiServer) -> Counter[str]:
    """Requests to our kinds and to events that were no reads, so far: `VERB resource code`."""
    out: Counter[str] = Counter()
    for name, given, value in _SAMPLE.findall(server.call("GET", "/metrics")):
        if name != "apiserver_request_total":
            continue
        labels = dict(_LABEL.findall(given))
        if labels["verb"] not in _READING and labels["resource"] in _OURS:
            what = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            out[f"{labels['verb']} {what} {labels['code']}"] += int(float(value))
    return out


@dataclass(frozen=True, slots=True)
class Memory:
    """A process's memory, MiB."""

    rss: float
    peak: float
    pss: float

    @staticmethod
    def of(pid: int) -> Memory:
        """As it is now."""
        status = _kilobytes(Path(f"/proc/{pid}/status"))
        return Memory(
            status["VmRSS"] / 1024, status["VmHWM"] / 1024, _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))["Pss"] / 1024
        )


def _kilobytes(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", file.read_text(), re.MULTILINE)}


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, s; in hundredths."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def scheduled_s(pid: int) -> float:
    """The same to the nanosecond, as long as no thread ends meanwhile."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
