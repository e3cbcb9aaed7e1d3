"""Chooses how an engine attends, and says why.

`python -m tartlet_worker.torch_engine.attention_choice DEVICE` prints the choice as `name: reason`. The module
imports neither torch nor Triton before it makes an implementation, so the answer comes at once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tartlet_worker.attention.base import Attention
    from tartlet_worker.checkpoints.model_config import ModelConfig
    from tartlet_worker.models.kv_store import KvStore

NAMES = ("torch-gather", "torch-chunked", "c", "triton")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of `NAMES`, and the reason, a clause without a full stop."""

    name: str
    why: str


def choose(device: str, *, batch_invariant: bool, c_kernel: bool, triton_lacks: str) -> Choice:
    """Choose for a device.

    Args:
        device: torch's name.
        batch_invariant: whether a command's bits may depend on its batch; the C kernel's and Triton's never do.
        c_kernel: whether the C kernel is built, is wanted and takes the model's heads.
        triton_lacks: what keeps Triton's kernels from running here, a clause; "" if nothing does.
    """
    if device == "cpu" and c_kernel:
        return Choice("c", "the C kernel is built and reads pages in place")
    if device.startswith("cuda") and not triton_lacks:
        return Choice("triton", "Triton and a C compiler are there, and its kernels read pages in place")
    missing = "the C kernel does not serve this engine" if device == "cpu" else triton_lacks
    if not device.startswith(("cpu", "cuda")):
        missing = f"neither the C kernel nor Triton serves {device}"
    if batch_invariant:
        return Choice("torch-chunked", f"{missing}, and batch_invariant needs tiles of one shape")
    return Choice("torch-gather", missing)


def triton_lacks() -> str:
    """Return what keeps Triton's kernels from running on this machine's GPU, or ""."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
    if not any(shutil.which(name) for name in compilers if name):
        return "there is no C compiler, with which Triton builds a kernel's launcher"
    return ""


def make(name: str, config: ModelConfig, device: str, *, batch_invariant: bool) -> tuple[Attention, KvStore | None]:
    """Make an implementation of attention, and the store of keys and values that goes with it (None: torch's).

    Raises:
        ValueError: `name` is none of `NAMES`, or doesn't serve this device.
    """
    if name == "triton":
        from tartlet_worker.attention.triton_paged import TritonPaged
        from tartlet_worker.models.triton_store import TritonStore

        attention = TritonPaged(config.kv_heads, device, group=config.group, batch_invariant=batch_invariant)
        return attention, TritonStore(config)
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


def main(argv: list[str]) -> int:
    """Print the choice for a CUDA device, as `name: reason`."""
    found = choose(argv[0], batch_invariant=False, c_kernel=False, triton_lacks=triton_lacks())
    print(f"{found.name}: {found.why}")  # noqa: T201 - a command's output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
