"""Reads the tensors of a checkpoint from its safetensors files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tartlet_common.errors.registry import CheckpointBroken
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.checkpoints.tensors import require, tensor_shapes, types, weight_files


class WeightReader:
    """Reads single tensors of a checkpoint, checked against the shapes that its configuration implies."""

    def __init__(self, path: Path, config: ModelConfig, dtype: torch.dtype) -> None:
        self._path, self._dtype = path, dtype
        self._shapes = tensor_shapes(config)
        self._open = {}
        found: dict[str, str] = {}
        for file in weight_files(path):
            try:
                reader = safe_open(str(file), framework="pt", device="cpu")
                found |= types(reader)
                self._open.update(dict.fromkeys(reader.keys(), reader))
            except (SafetensorError, OSError) as error:
                raise CheckpointBroken(path=str(path), detail=f"{file.name}: {error}") from error
        require(path, config, found)

    def has(self, name: str) -> bool:
        """Return whether a model of this configuration has such a tensor."""
        return name in self._shapes

    def rows(self, name: str) -> int:
        """Return the rows that a tensor of this model has."""
        return self._shapes[name][0]

    def get(self, name: str) -> Tensor:
        """Return a tensor in the engine's dtype, on the CPU.

        Raises:
            CheckpointBroken: the shape differs from the shape that config.json implies, or the data can't be read.
        """
        try:
            tensor: Tensor = self._open[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointBroken(path=str(self._path), detail=f"{name}: {error}") from error
        if tuple(tensor.shape) != self._shapes[name]:
            detail = f"{name} has shape {tuple(tensor.shape)}, config.json implies {self._shapes[name]}"
            raise CheckpointBroken(path=str(self._path), detail=detail)
        return tensor.to(self._dtype)

    def cat(self, *names: str) -> Tensor:
        """Return several tensors as one, their rows below each other."""
        return torch.cat([self.get(name) for name in names])
