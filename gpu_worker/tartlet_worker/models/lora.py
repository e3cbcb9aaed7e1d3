"""Linear layers with LoRA adapters: several adapters and none in one batch, each on its own rows.

Adapters come and go between two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor

from tartlet_worker.checkpoints.adapters import Adapter
from tartlet_worker.models.linear import BlockedLinear, Linear, PlainLinear


class Group(NamedTuple):
    """The rows of a pass that one adapter computes; None stands for all of them."""

    number: int
    rows: Tensor | None


class Delta(NamedTuple):
    """What an adapter adds to a part of a layer's outputs: up(down(x)), from output `first` on."""

    first: int
    down: Linear
    up: Linear


Deltas = tuple[tuple[Delta, ...], ...]
"""What an adapter adds to each of the linear layers, in their order."""


class Adapters:
    """The adapters of a model: their matrices, and which rows of the pass under way each of them computes."""

    def __init__(self, *, dtype: torch.dtype, device: str, batch_invariant: bool) -> None:
        """Begin without adapters and without layers."""
        self._layers: list[AdaptedLinear] = []
        self._dtype, self._device = dtype, device
        self._linear: Callable[[Tensor], Linear] = BlockedLinear if batch_invariant else PlainLinear
        self.groups: list[Group] = []

    def wrap(self, base: Linear, modules: Sequence[str], widths: Sequence[int]) -> Linear:
        """Let adapters add to a linear layer.

        Args:
            base: the layer, which computes several modules at once, their outputs behind each other.
            modules: the names of these modules in the checkpoint.
            widths: how many outputs each has.
        """
        starts = [0, *accumulate(widths)]
        layer = AdaptedLinear(base, dict(zip(modules, starts, strict=False)), self)
        self._layers.append(layer)
        return layer

    def read(self, adapter: Adapter) -> Deltas:
        """Bring an adapter's matrices onto the device, for all layers that were wrapped. Any thread may call this.

        Raises:
            SafetensorError, OSError: the file has changed since it was checked.
            torch.OutOfMemoryError, MemoryError: the device has no room for them.
        """
        with safe_open(str(adapter.weights), framework="pt", device="cpu") as reader:
            return tuple(
                tuple(
                    Delta(first, self._matrix(reader, pair.a), self._matrix(reader, pair.b, pair.scale))
                    for module, first in layer.modules.items()
                    if (pair := adapter.modules.get(module)) is not None
                )
                for layer in self._layers
            )

    def add(self, number: int, deltas: Deltas) -> None:
        """Give the layers an adapter, between two passes."""
        for layer, added in zip(self._layers, deltas, strict=True):
            if added:
                layer.deltas[number] = added

    def remove(self, number: int) -> None:
        """Take an adapter away, between two passes."""
        for layer in self._layers:
            layer.deltas.pop(number, None)

    def select(self, numbers: npt.NDArray[np.uint32]) -> None:
        """Choose the adapter of each row of the next pass: numbers [T], 0 for none; or [0] if no row has one."""
        self.groups = []
        for number in np.unique(numbers).tolist():
            if number:
                chosen = numbers == number
                rows = None if chosen.all() else torch.from_numpy(np.flatnonzero(chosen)).to(self._device)
                self.groups.append(Group(number, rows))

    def _matrix(self, reader: safe_open, name: str, scale: float = 1.0) -> Linear:
        matrix = reader.get_tensor(name).float() * scale
        return self._linear(matrix.to(self._dtype).to(self._device))


class AdaptedLinear:
    """A linear layer to whose outputs the adapters of the pass add theirs."""

    def __init__(self, base: Linear, modules: Mapping[str, int], adapters: Adapters) -> None:
        """`modules`: the first output of each module, by the module's name."""
        self._base, self._adapters = base, adapters
        self.modules = modules
        self.deltas: dict[int, tuple[Delta, ...]] = {}
        """What each adapter adds, by its number, of those that add anything here."""

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        out = self._base(x)
        for number, rows in self._adapters.groups:
            for first, down, up in self.deltas.get(number, ()):
                added = up(down(x if rows is None else x.index_select(0, rows)))
                part = out[:, first : first + added.shape[1]]
                if rows is None:
                    part.add_(added)
                else:
                    part.index_add_(0, rows, added)
        return out
