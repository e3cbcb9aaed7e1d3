"""Looks at the machine: versions, the card, its two ceilings, and one kernel of Triton's."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.gpu.loops import DecodeLoop, Rig, Way
from bench.gpu.record import Record
from bench.gpu.shapes import checkpoint
from bench.gpu.timing import seconds
from bench.harness.provenance import provenance
from bench.product.gpu import attention_choice

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "grpcio",
    "protobuf",
    "pydantic",
    "wasmtime",
    "flashinfer-python",
    "apache-tvm-ffi",
    "transformers",
)
MODULES = (
    "grpc", "wasmtime", "pydantic", "prometheus_client", "pytest_timeout", "rich", "tartlet_runtime.app",
    "tartlet_control.app", "tartlet_worker.app", "tartlet_worker.torch_engine.loader",
)  # fmt: skip


def run(record: Record) -> None:
    """Note everything. What fails the step: no card, a module that can't be imported, a kernel that tells otherwise."""
    card = (
        "cpu (rehearsal)" if record.rehearse else torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    )
    record.note(card=card, python=sys.version.split()[0], provenance=provenance([]))
    record.note(versions={name: _version(name) for name in PACKAGES})
    record.note(tools={tool: _said(command) for tool, command in _TOOLS.items()})
    expect_imports(record, MODULES)
    record.expect(card != "none", "torch finds no CUDA device")
    if card == "none":
        return
    record.note(triton_lacks=attention_choice.triton_lacks())
    if not record.rehearse:
        properties = torch.cuda.get_device_properties(0)
        record.note(
            capability=list(torch.cuda.get_device_capability()),
            multiprocessors=properties.multi_processor_count,
            free_bytes=torch.cuda.mem_get_info()[0],
            total_bytes=properties.total_memory,
        )
    record.note(**_rates(record.device))
    with tempfile.TemporaryDirectory() as directory:
        record.note(triton_kernel=_triton(Path(directory), record.device))
    if not record.rehearse:
        expect_checks(record, _checks(record.device))


_TOOLS = {
    "nvcc": ["nvcc", "--version"],
    "gcc": ["gcc", "--version"],
    "ninja": ["ninja", "--version"],
    "nvidia-smi": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem", "--format=csv"],
}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _said(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return "missing"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except subprocess.TimeoutExpired:
        return "it hangs"
    return (done.stdout or done.stderr).strip()[-400:]


def expect_imports(record: Record, names: Sequence[str]) -> None:
    """Note whether modules can be imported; each that can't is a problem, which later steps would meet one by one."""
    found = {name: _import(name) for name in names}
    record.note(imports=found)
    for name, said in found.items():
        record.expect(said == "ok", f"{name} can't be imported: {said}")


def _import(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever keeps it out is what the record should say
        return repr(error)
    return "ok"


def _rates(device: str) -> dict[str, float]:
    """Measure the two ceilings: bytes copied within the device (read and written) and bf16 products, a second."""
    small = device == "cpu"
    data = torch.randn((1 << 20) if small else (1 << 29), device=device)
    n = 256 if small else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    target = torch.empty_like(data)
    copies = 2 * data.nbytes / seconds(lambda: target.copy_(data), device)
    products = 2 * n**3 / seconds(lambda: a @ b, device)
    return {"copy_bytes_per_s": copies, "bf16_flop_per_s": products}


def _checks(device: str) -> list[dict[str, Any]]:
    """Run the checks of `tartlet doctor`: each kernel against gathered pages, on the device."""
    command = [sys.executable, "-m", "tartlet_worker.torch_engine.gpu_checks", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: list[dict[str, Any]] = []
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    if done.returncode or not found:
        found.append({"name": "checks", "status": "fail", "found": done.stderr[-1000:]})
    return found


def expect_checks(record: Record, found: Sequence[dict[str, Any]]) -> None:
    """Note the findings; each that failed is a problem."""
    record.note(checks=list(found))
    for finding in found:
        record.expect(finding["status"] != "fail", f"{finding['name']}: {finding['found']}")


def _triton(rehearse_in: Path, device: str) -> str:
    """Make one step by Triton's kernels, on a model of one layer."""
    rig = Rig(checkpoint("1b", rehearse_in, rehearse=True), device, num_pages=16, batch=1, dtype="float32")
    DecodeLoop(rig.engine(Way("triton", graphs=False)), [5], 1).step()
    return "ok"
