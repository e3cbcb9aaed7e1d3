"""Errors of checkpoints and of the start of a process (5xx), and of leases. Code imports them from `registry`."""

from __future__ import annotations

from tartlet_common.errors.base import TartletError
from tartlet_common.errors.base import register as _register


@_register(501)
class CheckpointMissing(TartletError):
    message = "no checkpoint at {path}: {detail}"
    remedy = "Give a checkpoint's directory, not a model's name: `hf download ORG/NAME --local-dir DIR` makes one."


@_register(502)
class CheckpointBroken(TartletError):
    message = "the checkpoint at {path} can't be loaded: {detail}"
    remedy = "Download it again, or check that all of its files belong together."


@_register(503)
class UnknownFamily(TartletError):
    message = "models of type {family!r} are not supported; supported: {supported}"
    remedy = "Use a Llama, Mistral, Qwen2 or Qwen3 checkpoint."


@_register(504)
class OutOfDeviceMemory(TartletError):
    message = "{asked_bytes} bytes needed on {device}, {free_bytes} free"
    remedy = "Lower kv_memory_bytes, or use a smaller model."


@_register(505)
class AddressInUse(TartletError):
    message = "{address} is in use"
    remedy = "Stop the process that uses it, or choose another: TARTLET_RUN_DIR, --address or --http."


@_register(506)
class StartFailed(TartletError):
    message = "{role} did not start: {detail}"
    remedy = "The role's log says more."


@_register(507)
class DiskFull(TartletError):
    message = "can't write {path}: {detail}"
    remedy = "Free disk space, or set another directory."


@_register(415, retryable=True)
class LeaseLost(TartletError):
    message = "this control has lost its lease: {detail}"
    remedy = "Nothing is to be done if another control leads. Else check the lease's Redis (lease_url)."
