"""Wires a worker together: settings, engine, link to control."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable

from tartlet_common.config.lists import named_directories
from tartlet_common.config.settings import WorkerSettings
from tartlet_common.engine import defaults
from tartlet_common.errors.registry import InvalidConfig
from tartlet_common.process.role import Notify
from tartlet_common.rpc.endpoints import Tls
from tartlet_worker.engine import Engine
from tartlet_worker.serving.link import FAREWELL_S, Link
from tartlet_worker.warm_up import warm_up

log = logging.getLogger("tartlet.worker")

_SWITCH_INTERVAL_S = 0.0005  # a result waits at most this long for the interpreter; Python's default is 5 ms
FAKE_KV_BYTES_PER_TOKEN = 1024  # an assumed size, so that kv_memory_bytes decides the fake engine's number of pages

_NO_TORCH = (
    "On a cluster, have the pool use the worker's image (spec.image, or the chart's workerImage), or a fake engine "
    "(spec.engine.backend: Fake). Elsewhere: pip install 'tartlet[worker]', or --engine fake."
)


def load(settings: WorkerSettings, progress: Callable[[str], None]) -> Engine:
    """Load the engine that the settings ask for.

    Args:
        settings: the worker's settings.
        progress: called with one line about each long part of the start.

    Raises:
        InvalidConfig: engine "torch" without a model, or without its packages; both settings of adapters.
        CheckpointMissing, CheckpointBroken, UnknownFamily, OutOfDeviceMemory: see `load_engine`.
    """
    if settings.adapters_file is not None and settings.adapters.strip():
        raise InvalidConfig(role="worker", detail="adapters and adapters_file are both set: keep one of them")
    if settings.engine == "fake":
        from tartlet_worker.fake import FakeEngine, FakeOptions

        kv_bytes = settings.kv_memory_bytes
        if kv_bytes == "auto":  # a fake engine has no device to measure
            kv_bytes = defaults.KV_MEMORY_GIB << 30
        pages = kv_bytes // (settings.page_size * FAKE_KV_BYTES_PER_TOKEN)
        return FakeEngine(
            FakeOptions(
                model=settings.model_name or "fake",
                page_size=settings.page_size,
                num_pages=max(1, pages),
                adapters=tuple(named_directories(settings.adapters)),
                live_adapters=settings.adapters_file is not None,
                host_pages=settings.host_kv_bytes // (settings.page_size * FAKE_KV_BYTES_PER_TOKEN),
                num_embeds=settings.num_embeds,
                num_slots=settings.num_slots,
                max_batch_tokens=settings.max_batch_tokens,
                max_batch_commands=settings.max_batch_commands,
                logprobs_limit=settings.logprobs_limit,
                step_s=settings.fake_step_s,
                token_s=settings.fake_token_s,
                fail_token=settings.fake_fail_token,
                break_token=settings.fake_break_token,
            )
        )
    if settings.model is None:
        raise InvalidConfig(role="worker", detail="model: a checkpoint directory is needed (or --engine fake)")
    try:
        from tartlet_worker.checkpoints.tensors import (
            check,  # safetensors, like torch, isn't everywhere that fake engines are
        )

        check(settings.model)  # before the seconds that torch takes
        progress("importing torch")
        from tartlet_worker.torch_engine.loader import engine_from_settings  # torch: only when asked for
    except ModuleNotFoundError as e:
        detail = f"engine torch: the package {e.name} isn't in this image or installation"
        raise InvalidConfig(role="worker", detail=detail, remedy=_NO_TORCH) from e
    return engine_from_settings(settings, progress)


async def main(
    settings: WorkerSettings,
    notify: Notify,
    load: Callable[[WorkerSettings, Callable[[str], None]], Engine] = load,
) -> None:
    """Load the engine, then serve it until a SIGTERM has drained it.

    Args:
        settings: the worker's settings.
        notify: told how the start goes on.
        load: loads the engine.
    """
    notify.set_ready("loading")
    gc.disable()  # importing torch makes a million objects and no garbage: collecting would take a fifth of the import
    try:
        engine = await asyncio.to_thread(load, settings, notify.progress)
        notify.progress("warming up")
        await asyncio.to_thread(warm_up, engine)
    finally:
        gc.freeze()
        gc.enable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    link = Link(
        engine,
        settings.control,
        Tls.of(settings),
        notify.ready,
        settings.engine_id,
        settings.pool,
        adapters_file=settings.adapters_file,
    )
    link.on_state = notify.set_ready
    running = asyncio.ensure_future(link.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        log.info("draining")
        link.on_state = _nothing
        notify.set_ready("draining")
        link.drain()
        try:
            await asyncio.wait_for(asyncio.shield(running), settings.drain_grace_s)
        except TimeoutError:
            link.end_drain(settings.drain_grace_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(running), FAREWELL_S)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _nothing(_: str) -> None:
    """No-op: probes keep seeing that the worker drains."""
