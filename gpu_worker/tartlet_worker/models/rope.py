"""Rotary position embedding (Su et al. 2021) with the scalings that Llama-family checkpoints use.

The arithmetic is that of the published models: frequencies and angles are float32, then cosine and sine are rounded to
the model's dtype.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tartlet_worker.checkpoints.model_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Return frequencies [head_dim / 2] float32, and the factor of cosine and sine.

    The scaling `dynamic` changes frequencies only past the trained length. The engine refuses such positions
    (`max_position`), so `dynamic` is the plain rotation here.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inv = 1.0 / (rope.theta**exponent)  # [head_dim / 2]
    if rope.kind == "linear":
        return inv / _number(rope, "factor"), 1.0
    if rope.kind == "llama3":
        return _llama3(rope, inv), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, head_dim)
    return inv, 1.0


def _number(rope: RopeConfig, name: str, default: float | None = None) -> float:
    value = rope.get(name, default)
    if value is None:
        raise ValueError(f"rope type {rope.kind} needs {name}")
    return float(value)


def _llama3(rope: RopeConfig, inv: Tensor) -> Tensor:
    """Scale as Llama 3.1: divide the frequency of long wavelengths, keep short ones, interpolate between."""
    factor, trained = _number(rope, "factor"), _number(rope, "original_max_position_embeddings")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    wavelength = 2 * math.pi / inv
    slowed = torch.where(wavelength > trained / low, inv / factor, inv)
    smooth = (trained / wavelength - low) / (high - low)
    between = (1 - smooth) * slowed / factor + smooth * slowed
    is_between = ~(wavelength < trained / high) & ~(wavelength > trained / low)
    return torch.where(is_between, between, slowed)


def _yarn(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Scale as YaRN (Peng et al. 2023): a ramp over dimensions from interpolated to original frequencies."""
    factor, trained = _number(rope, "factor"), _number(rope, "original_max_position_embeddings")
    fast, slow = _number(rope, "beta_fast", 32.0), _number(rope, "beta_slow", 1.0)

    def dimension(turns: float) -> float:
        return head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(fast), dimension(slow)
    if rope.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp is a step
    ramp = torch.clamp((torch.arange(head_dim // 2).float() - low) / (high - low), 0, 1)
    frequencies = rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    inv = (1.0 / (factor * frequencies)) * ramp + (1.0 / frequencies) * (1 - ramp)
    return inv, _yarn_attention_factor(rope, factor)


def _yarn_attention_factor(rope: RopeConfig, factor: float) -> float:
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and all_dim:
        return scale(float(mscale)) / scale(float(all_dim))
    return scale(1.0)


class RopeTable:
    """A table of cosine and sine by position, up to the largest position that was needed so far."""

    def __init__(self, rope: RopeConfig, head_dim: int, max_position: int, dtype: torch.dtype, device: str) -> None:
        self._inv, self._factor = inverse_frequencies(rope, head_dim)
        self._max, self._dtype, self._device = max_position, dtype, device
        self.cos = torch.empty(0, head_dim // 2, dtype=dtype, device=device)  # [positions, head_dim / 2]
        self.sin = self.cos
        self.reserve(min(1024, max_position))

    def reserve(self, positions: int) -> None:
        """Make positions 0 .. positions - 1 available."""
        have = self.cos.shape[0]
        if positions <= have:
            return
        count = min(self._max, max(positions, 2 * have))
        angles = torch.outer(torch.arange(count, dtype=torch.float32), self._inv)  # [count, head_dim / 2]
        self.cos = (angles.cos() * self._factor).to(self._dtype).to(self._device)
        self.sin = (angles.sin() * self._factor).to(self._dtype).to(self._device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, heads, head_dim] by cos and sin [T, 1, head_dim / 2], in halves, not in interleaved pairs."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
