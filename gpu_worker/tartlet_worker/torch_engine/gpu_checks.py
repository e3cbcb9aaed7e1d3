"""What `tartlet doctor` finds out about a CUDA device and the kernels that a worker would run there.

`python -m tartlet_worker.torch_engine.gpu_checks DEVICE [MODEL]` prints one JSON object a line: name, status ("ok",
"warn" or "fail"), found, remedy. Each check stands for itself: an error in one is its finding, and the next one runs.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from tartlet_common.config.load import load
from tartlet_common.config.settings import WorkerSettings
from tartlet_worker.attention import flashinfer_modules
from tartlet_worker.attention.base import Attention, AttentionBatch
from tartlet_worker.attention.torch_gather import TorchGather
from tartlet_worker.checkpoints.model_config import ModelConfig, RopeConfig, read_config
from tartlet_worker.graphs.capture import CudaCapture
from tartlet_worker.pools import FAR
from tartlet_worker.torch_engine import attention_choice, driver_check, graph_check
from tartlet_worker.torch_engine.differing import CLOSE, farthest, windows
from tartlet_worker.torch_engine.fast_path import resolve_dtype
from tartlet_worker.torch_engine.finding import Finding
from tartlet_worker.torch_engine.memory import use_device

CAPABILITY = "9.0"
"""Of H100 and H200, for which the image's modules are built."""
PAGE_SIZE, COLUMNS = 4, 1298
"""Of the commands that are compared: hundreds of pages, and more than two runs of Triton's kernel."""
PARAMETERS: dict[str, dict[str, tuple[str, ...]]] = {
    "BatchDecodeWithPagedKVCacheWrapper": {
        "__init__": ("float_workspace_buffer", "kv_layout", "use_tensor_cores", "backend"),
        "_plan_impl": (
            "indptr", "indices", "last_page_len", "num_qo_heads", "num_kv_heads", "head_dim", "page_size",
            "window_left", "q_data_type", "kv_data_type", "o_data_type", "sm_scale",
        ),
        "run": ("q", "paged_kv_cache", "out", "enable_pdl"),
    },
    "BatchPrefillWithPagedKVCacheWrapper": {
        "__init__": (
            "float_workspace_buffer", "kv_layout", "backend", "jit_args", "jit_kwargs", "variant_owns_mask",
        ),
        "plan": (
            "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads",
            "num_kv_heads", "head_dim_qk", "page_size", "custom_mask", "causal", "window_left", "q_data_type",
            "kv_data_type", "o_data_type", "sm_scale",
        ),
        "run": ("q", "paged_kv_cache", "args", "out", "enable_pdl"),
    },
    "fast_decode_plan": {
        "": (
            "self", "indptr", "indices", "last_page_len", "num_qo_heads", "num_kv_heads", "head_dim", "page_size",
            "window_left", "q_data_type", "kv_data_type", "sm_scale",
        ),
    },
}  # fmt: skip
"""The parameters that `attention.flashinfer` gives or counts on: of wrappers by method, and of a function under ""."""


def default_config() -> ModelConfig:
    """Return the shape that is checked where no model is named: Llama 3's heads."""
    return ModelConfig(
        family="llama", dim=1024, layers=1, heads=8, kv_heads=2, head_dim=128, ffn=1024, vocab=8, norm_eps=1e-5,
        max_position=1024, rope=RopeConfig(1e4), windows=(None,),
    )  # fmt: skip


def checks(device: str, config: ModelConfig, settings: WorkerSettings) -> Iterator[Finding]:
    """Check a CUDA device for a model and a worker's settings."""
    yield driver_check.driver_finding(driver_check.driver_version(), torch.version.cuda)
    dtype = resolve_dtype(settings.dtype, config)
    if not torch.cuda.is_available():  # doctor has said so, and the driver may be why
        yield expected_finding(device, config, settings, dtype)
        return
    use_device(device)
    yield _device(device)
    needs = attention_choice.flashinfer_needs(config, dtype)
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    triton, flashinfer = attention_choice.triton_lacks(), flashinfer_modules.lacks(needs, capability)
    path, attention = attention_finding(device, settings, triton_lacks=triton, flashinfer_lacks=flashinfer)
    yield attention
    yield triton_finding(device, config, triton)
    yield from flashinfer_findings(device, config, dtype, flashinfer, capability)
    if settings.graphs == "off":
        yield Finding("cuda graphs", "ok", "off: TARTLET_WORKER_GRAPHS says so")
    elif attention.status == "ok":
        yield graph_check.graph_finding(path, device, config, CudaCapture(device))


def expected_finding(device: str, config: ModelConfig, settings: WorkerSettings, dtype: str) -> Finding:
    """Return the path of attention that a device with `CAPABILITY` would take, on a machine without a device."""
    needs = attention_choice.flashinfer_needs(config, dtype)
    triton, flashinfer = attention_choice.triton_lacks(), flashinfer_modules.lacks(needs, CAPABILITY)
    _, finding = attention_finding(device, settings, triton_lacks=triton, flashinfer_lacks=flashinfer)
    return replace(finding, name="attention elsewhere", found=f"on a GPU of capability {CAPABILITY}: {finding.found}")


def attention_finding(
    device: str, settings: WorkerSettings, *, triton_lacks: str, flashinfer_lacks: str
) -> tuple[str, Finding]:
    """Return the path of attention that a worker would take, and a line with the reason."""
    name, invariant = settings.attention, settings.batch_invariant
    lacks = {"triton_lacks": triton_lacks, "flashinfer_lacks": flashinfer_lacks}
    if name == "auto":
        choice = attention_choice.choose(device, batch_invariant=invariant, c_kernel=False, **lacks)
        return choice.name, Finding("attention", "ok", f"{choice.name}: {choice.why}")
    why_not = attention_choice.obstacle(name, device, batch_invariant=invariant, **lacks)
    if why_not:
        return name, Finding("attention", "fail", f"{name}: {why_not}", "Set TARTLET_WORKER_ATTENTION=auto.")
    return name, Finding("attention", "ok", f"{name}: TARTLET_WORKER_ATTENTION names it")


def _device(device: str) -> Finding:
    free, total = torch.cuda.mem_get_info(device)
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    found = f"{name}, capability {major}.{minor}, {free >> 20} of {total >> 20} MiB free"
    if (major, minor) == (9, 0):
        return Finding("gpu", "ok", found)
    return Finding("gpu", "warn", found, "The kernels are written for H100 and H200 (9.0); others are untried.")


def triton_finding(device: str, config: ModelConfig, lacks: str) -> Finding:
    """Run one small batch by Triton's kernels."""
    remedy = "Install Triton and gcc: without them pages are gathered, which is several times slower."
    if lacks:
        return Finding("triton", "warn", lacks, remedy)
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        return Finding(
            "triton", "fail", f"{cache}: {error}", "Set TRITON_CACHE_DIR to a directory that can be written."
        )
    return _compared("triton", device, config, "Set TARTLET_WORKER_DEVICE=cpu, and report this with the GPU's name.")


def flashinfer_findings(device: str, config: ModelConfig, dtype: str, lacks: str, capability: str) -> Iterator[Finding]:
    """Check FlashInfer's package, its modules, and one small batch of each class."""
    if lacks:
        build = f"python -m tartlet_worker.attention.flashinfer_build --architectures {capability}a"
        remedy = f"Install tartlet[flashinfer] and run `{build}`; without it Triton's kernels serve."
        yield Finding("flashinfer", "warn", lacks, remedy)
        return
    again = f"Install flashinfer-python=={flashinfer_modules.VERSION}."
    try:
        module = importlib.import_module("flashinfer")
        changed = parameters_lack(module)
    except Exception as error:  # noqa: BLE001 - whatever its import raises is the finding
        yield Finding("flashinfer", "fail", f"{type(error).__name__}: {error}", again)
        return
    if changed:
        yield Finding("flashinfer", "fail", changed, again)
        return
    archs = os.environ.get("FLASHINFER_CUDA_ARCH_LIST", "")
    if archs and not any(arch.rstrip("af") == capability for arch in archs.split()):
        remedy = f"Unset FLASHINFER_CUDA_ARCH_LIST, or add {capability}a."
        yield Finding("flashinfer", "fail", f"FLASHINFER_CUDA_ARCH_LIST is {archs}", remedy)
        return
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        yield Finding(
            "flashinfer tensors",
            "warn",
            "torch lacks an attribute, so tvm-ffi compiles an add-on",
            "Use a newer torch.",
        )
    root = flashinfer_modules.package()
    needs = attention_choice.flashinfer_needs(config, dtype)
    later = [n for n in needs.modules() if root is None or not flashinfer_modules.built(root, n, capability)]
    found = (
        f"{module.__version__}, all modules built" if not later else f"{len(later)} modules are compiled when needed"
    )
    yield Finding("flashinfer", "ok", found)
    yield _compared(
        "flashinfer", device, config, "Set FLASHINFER_DISABLE_JIT=1 and remove data/aot to fall back to Triton."
    )


def parameters_lack(module: object) -> str:
    """Return what of FlashInfer's wrappers and functions is missing, a clause, or ""."""
    for of, methods in PARAMETERS.items():
        for method, names in methods.items():
            found = getattr(module, of, None)
            function = getattr(found, method, None) if method else found
            if function is None:
                return f"there is no {of}{method and '.'}{method}"
            there = inspect.signature(function).parameters
            missing = [name for name in names if name not in there]
            if missing:
                return f"{of}{method and '.'}{method} has no parameter {missing[0]}"
    return ""


def small_batch() -> tuple[AttentionBatch, int]:
    """Return a batch with a command of each class and a query that sees nothing, and its number of pages.

    Each command has `COLUMNS` columns, in pages of `PAGE_SIZE` that lie in any order.
    """
    number = -(-COLUMNS // PAGE_SIZE)
    pages = np.random.default_rng(0).permutation(4 * number).astype(np.int32).reshape(4, number)
    positions = np.full((4, number * PAGE_SIZE), FAR, np.int32)
    positions[:, :COLUMNS] = np.arange(COLUMNS)
    positions[2, 1:COLUMNS:5] = FAR
    mask = np.zeros((2, number * PAGE_SIZE), np.bool_)
    mask[1, 3:COLUMNS:2] = True
    last = COLUMNS - 1
    query = np.array([last, last - 2, last - 1, last, last, last - 1, last], np.int32)
    indptr = np.array([0, 1, 4, 5, 7])
    return AttentionBatch(indptr, query, pages, np.full(4, number, np.int32), positions, {3: mask}), 4 * number


def _compared(name: str, device: str, config: ModelConfig, remedy: str) -> Finding:
    """Hold an implementation against gathered pages, in bf16, on the device."""
    try:
        error = difference(name, device, config, torch.bfloat16)
    except Exception as caught:  # noqa: BLE001 - whatever a kernel raises is the finding
        return Finding(f"{name} kernels", "fail", f"{type(caught).__name__}: {caught}", remedy)
    if error > CLOSE:
        return Finding(f"{name} kernels", "fail", f"results differ by {error:.3g} of the largest number", remedy)
    return Finding(f"{name} kernels", "ok", f"ran; at most {error:.1g} of the largest number from gathered pages")


def difference(name: str, device: str, config: ModelConfig, dtype: torch.dtype) -> float:
    """Return how far an implementation is from gathered pages in float32, as `farthest` says, through each window."""
    batch, pages = small_batch()
    looked = windows(config, more=name != "flashinfer")
    made: Attention
    made, _ = attention_choice.make(
        name, replace(config, windows=looked), device, batch_invariant=False, dtype=dtype, page_size=PAGE_SIZE
    )
    generator = torch.Generator(device).manual_seed(1)
    heads = (config.heads, config.head_dim)
    q = torch.randn(7, *heads, dtype=dtype, device=device, generator=generator)
    kv_shape = (2, pages, config.kv_heads, PAGE_SIZE, config.head_dim)
    kv = torch.randn(kv_shape, dtype=dtype, device=device, generator=generator)
    truth = TorchGather(config.kv_heads, device)
    prepared, wanted = made.prepare(batch), truth.prepare(batch)
    return max(
        farthest(made.run(prepared, q, kv, window), truth.run(wanted, q.float(), kv.float(), window))
        for window in looked
    )


def main(argv: list[str]) -> int:
    """Print the findings for a device and perhaps a model."""
    config = read_config(Path(argv[1])) if len(argv) > 1 else default_config()
    for finding in checks(argv[0], config, load(WorkerSettings, "worker", env=os.environ).settings):
        print(json.dumps(asdict(finding)), flush=True)  # noqa: T201 - a command's output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
