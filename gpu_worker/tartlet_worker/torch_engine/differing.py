"""How far results of attention are from those of gathered pages, and the windows that checks look through."""

from __future__ import annotations

from torch import Tensor

from tartlet_worker.checkpoints.model_config import ModelConfig

CLOSE = 3e-2
"""How far bf16 results of two implementations may differ, over the largest number of a query's result.

Kernels on an H100 differ by 6e-3. A page of 4 tokens that is left out of 1,300 shows as some 1e-1.
"""
WINDOW = 700
"""Tokens of the window that checks look through: more than one run of Triton's kernel, and fewer than their columns."""


def windows(config: ModelConfig, *, more: bool) -> tuple[int | None, ...]:
    """Return windows for a check over more than `WINDOW` columns: the model's, but none that hides nothing.

    Args:
        config: the model's.
        more: add a window if the model has none. FlashInfer has kernels for windows only where the model has some.

    Example:
        >>> from types import SimpleNamespace
        >>> model = SimpleNamespace(windows=(None, 4096, None, 24))
        >>> windows(model, more=True), windows(SimpleNamespace(windows=(None,)), more=False)
        ((None, 700, 24), (None,))
    """
    found = [None if window is None else min(window, WINDOW) for window in config.windows]
    return tuple(dict.fromkeys([*found, WINDOW] if more else found))


def farthest(got: Tensor, want: Tensor) -> float:
    """Return the largest difference of results [T, ...] of T queries, over the largest number of its query's result.

    Infinity if a result is not a number. A query that sees nothing has the result zero.
    """
    got, want = got.float().flatten(1), want.float().flatten(1)
    error = ((got - want).abs().amax(1) / want.abs().amax(1).clamp(min=1e-3)).max().item()
    return error if error == error else float("inf")  # noqa: PLR0124 - a NaN isn't equal to itself
