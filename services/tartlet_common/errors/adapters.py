"""Errors of LoRA adapters. Code imports them from `registry`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError
from tartlet_common.errors.base import register as _register

__all__ = ["AdapterRefused", "UnknownAdapter"]


@_register(126)
class UnknownAdapter(TartletError):
    message = "the model {model!r} has no adapter {adapter}; it has {available}"
    remedy = "Take one of get_all_adapters(model), or add the adapter to its engines' list (docs/adapters.md)."


@_register(508)
class AdapterRefused(TartletError):
    message = "the adapter at {path} can't be used: {detail}"
    remedy = "Give the directory of a LoRA adapter of this model, as PEFT's `save_pretrained` writes it."
