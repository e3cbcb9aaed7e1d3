"""Why an engine on a CPU does not take the fast path: the C decoder, in bfloat16, on one thread.

`python -m tartlet_worker.torch_engine.fast_path [MODEL]` prints one reason a line for the settings in the environment,
and nothing where the fast path is taken. The module imports no torch, so the answer comes at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tartlet_common.config.load import load
from tartlet_common.config.settings import WorkerSettings
from tartlet_worker.checkpoints.model_config import ModelConfig, read_config
from tartlet_worker.kernels.library import MAX_GROUP, NEEDED_CPU_FLAGS, available, cpu_flags

FAST_DTYPE = "bfloat16"
DTYPE_NAMES = (FAST_DTYPE, "float32")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the fast path needs of a machine."""

    missing_cpu_flags: Collection[str]
    kernels_built: bool

    @classmethod
    def this(cls) -> Machine:
        """Look at the machine that this process runs on."""
        return cls(sorted(NEEDED_CPU_FLAGS - cpu_flags()), available())


def resolve_dtype(name: str, config: ModelConfig) -> str:
    """Return the dtype of an engine: "auto" is the checkpoint's, or bfloat16 if an engine can't compute in that.

    Raises:
        ValueError: `name` is neither "auto" nor one of `DTYPE_NAMES`.
    """
    if name == "auto":
        return config.dtype if config.dtype in DTYPE_NAMES else FAST_DTYPE
    if name not in DTYPE_NAMES:
        raise ValueError(f"dtype {name!r} is none of auto, {', '.join(DTYPE_NAMES)}")
    return name


def unserved(config: ModelConfig, *, adapters: bool = False) -> str:
    """Name what the C decoder doesn't run of a model, with adapters or without; "" if it runs it all."""
    if config.gemma:
        return "Gemma models"
    if config.experts:
        return "models with experts"
    return "adapters" if adapters else ""


def slow_path_reasons(
    device: str, dtype: str, threads: int, group: int, machine: Machine, *, other: str = ""
) -> list[str]:
    """Say why the C decoder does not run, one reason each with what to change; [] where it runs.

    Args:
        device: torch's name. A device that is not the CPU has no fast path of this kind, so there is nothing to say.
        dtype: one of `DTYPE_NAMES`.
        threads: torch's threads.
        group: query heads that share one key head.
        machine: its CPU and its kernels.
        other: what `unserved` returned for the model.
    """
    if device != "cpu":
        return []
    reasons = []
    if dtype != FAST_DTYPE:
        reasons.append(f"dtype is {dtype}, and the C decoder computes in bfloat16: set dtype=bfloat16")
    if threads != 1:
        reasons.append(f"threads is {threads}, and the C decoder uses one thread: set threads=1")
    if group > MAX_GROUP:
        reasons.append(f"{group} query heads share a key head, and the C decoder takes at most {MAX_GROUP}")
    if other:
        reasons.append(f"the C decoder doesn't run {other}")
    if machine.missing_cpu_flags:
        reasons.append(f"the CPU lacks {', '.join(machine.missing_cpu_flags)}")
    elif not machine.kernels_built:
        reasons.append("the kernels are not built: run `python -m tartlet_worker.kernels.build`")
    return reasons


def main(argv: list[str]) -> int:
    """Print the reasons for the worker's settings and a model, one a line.

    Raises:
        TartletError: the settings or the checkpoint can't be read.
    """
    settings = load(WorkerSettings, "worker", env=os.environ).settings
    path = Path(argv[0]) if argv else settings.model
    if settings.engine == "fake" or path is None:
        return 0
    config = read_config(path)
    dtype = resolve_dtype(settings.dtype, config)
    for reason in slow_path_reasons(
        settings.device,
        dtype,
        settings.threads,
        config.group,
        Machine.this(),
        other=unserved(config, adapters=bool(settings.adapters.strip()) or settings.adapters_file is not None),
    ):
        print(reason)  # noqa: T201 - a command's output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
