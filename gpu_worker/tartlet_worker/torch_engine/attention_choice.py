"""Chooses how an engine attends, and says why.

The module imports neither torch nor Triton nor FlashInfer before it makes an implementation.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tartlet_worker.attention import ahead_of_time, flashinfer_modules

if TYPE_CHECKING:
    import torch

    from tartlet_worker.attention.base import Attention
    from tartlet_worker.checkpoints.model_config import ModelConfig
    from tartlet_worker.models.kv_store import KvStore

NAMES = ("torch-gather", "torch-chunked", "c", "triton", "flashinfer")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `NAMES`, and the reason, a clause without a full stop."""

    name: str
    why: str


def choose(device: str, *, batch_invariant: bool, c_kernel: bool, triton_lacks: str, flashinfer_lacks: str) -> Choice:
    """Choose for a device.

    Args:
        device: torch's name.
        batch_invariant: whether a command's bits may depend on its batch; the C kernel's and Triton's never do.
        c_kernel: whether the C kernel is built, is wanted and takes the model's heads.
        triton_lacks: what keeps Triton's kernels from running here, a clause; "" if nothing does.
        flashinfer_lacks: the same of FlashInfer's kernels, for this model.
    """
    if device == "cpu" and c_kernel:
        return Choice("c", "the C kernel is built and reads pages in place")
    if device.startswith("cuda") and not batch_invariant and not flashinfer_lacks:
        rest = f"gathering, because {triton_lacks}" if triton_lacks else "Triton"
        return Choice("flashinfer", f"its kernels are there for this model; what they can't do goes to {rest}")
    if device.startswith("cuda") and not triton_lacks:
        why = "batch_invariant needs its tiles of one shape" if batch_invariant else flashinfer_lacks
        return Choice("triton", f"{why}; Triton and a C compiler are there")
    missing = "the C kernel does not serve this engine" if device == "cpu" else triton_lacks
    if not device.startswith(("cpu", "cuda")):
        missing = f"neither the C kernel nor Triton serves {device}"
    if batch_invariant:
        return Choice("torch-chunked", f"{missing}, and batch_invariant needs tiles of one shape")
    return Choice("torch-gather", missing)


def obstacle(name: str, device: str, *, batch_invariant: bool, triton_lacks: str, flashinfer_lacks: str) -> str:
    """Return what keeps an engine from attending by the path that its settings name, a clause; "" if nothing does.

    Args:
        name: "auto" or one of `NAMES`.
        device: torch's name.
        batch_invariant: see `choose`.
        triton_lacks: see `choose`.
        flashinfer_lacks: see `choose`.
    """
    if name in {"triton", "flashinfer"} and not device.startswith("cuda"):
        return f"it serves CUDA devices, and the device is {device}"
    if batch_invariant and name in {"torch-gather", "flashinfer"}:
        return "its bits depend on the batch, and batch_invariant is on"
    return {"triton": triton_lacks, "flashinfer": flashinfer_lacks}.get(name, "")


def triton_lacks() -> str:
    """Return what keeps Triton's kernels from running on this machine's GPU, or ""."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
    if ahead_of_time.launcher() is None and not any(shutil.which(name) for name in compilers if name):
        return "there is no C compiler, with which Triton builds a kernel's launcher"
    return ""


def flashinfer_needs(config: ModelConfig, dtype: str) -> flashinfer_modules.Needs:
    """Return what a model asks of FlashInfer. `dtype` is as settings name it."""
    windows = any(window is not None for window in config.windows)
    return flashinfer_modules.Needs(config.head_dim, dtype, config.group, full=None in config.windows, windows=windows)


def make(
    name: str, config: ModelConfig, device: str, *, batch_invariant: bool, dtype: torch.dtype, page_size: int
) -> tuple[Attention, KvStore | None]:
    """Make an implementation of attention, and the store of keys and values that goes with it (None: torch's).

    Raises:
        ValueError: `name` is none of `NAMES`, or doesn't serve this device.
    """
    if name == "triton":
        ahead_of_time.provide_launcher()
        from tartlet_worker.attention.triton_kernels import key_bytes
        from tartlet_worker.attention.triton_paged import TritonPaged
        from tartlet_worker.models.triton_store import TritonStore

        attention = TritonPaged(
            config.kv_heads,
            device,
            group=config.group,
            batch_invariant=batch_invariant,
            bytes_of_key=key_bytes(config.head_dim, dtype.itemsize),
        )
        return attention, TritonStore(config)
    if name == "flashinfer":
        from tartlet_worker.attention.flashinfer import FlashInfer

        rest = "triton" if device.startswith("cuda") and not triton_lacks() else "torch-gather"
        others, store = make(rest, config, device, batch_invariant=batch_invariant, dtype=dtype, page_size=page_size)
        return FlashInfer(config, device, dtype=dtype, page_size=page_size, rest=others), store
    from tartlet_worker.attention.c_kernel import CKernel
    from tartlet_worker.attention.torch_chunked import TorchChunked
    from tartlet_worker.attention.torch_gather import TorchGather

    made: dict[str, Callable[[int, str], Attention]] = {
        "torch-gather": TorchGather,
        "torch-chunked": TorchChunked,
        "c": CKernel,
    }
    if name not in made:
        raise ValueError(f"attention {name!r} is none of auto, {', '.join(NAMES)}")
    return made[name](config.kv_heads, device), None
