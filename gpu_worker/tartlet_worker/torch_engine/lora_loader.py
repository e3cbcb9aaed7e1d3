"""Gives a decoder LoRA adapters while it runs, and takes them away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from tartlet_common.engine.spec import AdapterSpec
from tartlet_common.errors.registry import AdapterRefused
from tartlet_worker.checkpoints.adapters import Adapter, read_adapter
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.models.lora import Adapters


class LoraLoader:
    """See `tartlet_worker.engine.LiveAdapters`."""

    def __init__(self, config: ModelConfig, adapters: Adapters) -> None:
        self._config, self._adapters = config, adapters
        self.loaded: dict[int, AdapterSpec] = {}
        """By number. The engine's thread changes it."""

    def check(self, name: str, path: Path) -> Adapter:
        """See `LiveAdapters.check`."""
        try:
            return read_adapter(name, path, self._config)
        except OSError as error:
            raise AdapterRefused(path=str(path), detail=str(error)) from error

    def load(self, checked: Adapter) -> Callable[[], None]:
        """See `LiveAdapters.load`."""
        path, number = str(checked.weights.parent), checked.spec.number
        try:
            deltas = self._adapters.read(checked)
        except (SafetensorError, OSError) as error:
            raise AdapterRefused(path=path, detail=str(error)) from error
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise AdapterRefused(path=path, detail="the device has no room for it: lower kv_memory_bytes") from error

        def add() -> None:
            self._adapters.add(number, deltas)
            self.loaded[number] = checked.spec

        return add

    def remove(self, number: int) -> None:
        """See `LiveAdapters.remove`."""
        self._adapters.remove(number)
        self.loaded.pop(number, None)
