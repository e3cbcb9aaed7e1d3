"""The dtype in which a benchmark computes on this machine's CPU."""

from __future__ import annotations

from bench.product.worker import NEEDED_CPU_FLAGS, cpu_flags


def quick_dtype() -> str:
    """Return "bfloat16" where the CPU multiplies it, else "float32": without that, bf16 takes ten times as long."""
    return "bfloat16" if cpu_flags() >= NEEDED_CPU_FLAGS else "float32"
