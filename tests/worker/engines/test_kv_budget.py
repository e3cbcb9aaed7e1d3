"""The size of the KV pool where the settings say `auto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tartlet_common.config.load import load
from tartlet_common.config.settings import WorkerSettings
from tartlet_common.errors.registry import InvalidConfig, OutOfDeviceMemory
from tartlet_worker.app import load as load_worker
from tartlet_worker.checkpoints.model_config import read_config
from tartlet_worker.pools import page_bytes
from tartlet_worker.torch_engine import loader
from tartlet_worker.torch_engine.kv_budget import batch_bytes, kv_bytes
from tartlet_worker.torch_engine.loader import engine_from_settings, load_engine
from tartlet_worker.torch_engine.memory import free_bytes
from tests.worker.families import checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module")
def model() -> Path:
    """Return a small checkpoint, which the tests only read."""
    return checkpoint("llama3-grouped")


def test_a_gpu_gives_most_of_what_is_left_and_a_cpu_half() -> None:
    for free in (GIB, 8 * GIB, 80 * GIB):
        spare = free - GIB // 2
        on_gpu, on_cpu = (kv_bytes(free, pools=GIB // 4, batch=GIB // 4, device=d) for d in ("cuda:1", "cpu"))
        assert on_gpu == int(spare * 0.9)
        assert on_cpu == int(spare * 0.5)
    assert kv_bytes(GIB, pools=GIB, batch=1, device="cuda") == 0


def test_the_pool_grows_with_what_the_loaded_weights_leave(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(model)
    options: dict[str, Any] = {"dtype": "float32", "kv_memory_bytes": "auto", "max_batch_tokens": 64}
    pages = []
    for free in (GIB // 4, GIB // 2):
        monkeypatch.setattr(loader, "free_bytes", lambda _, free=free: free)
        spec = load_engine(model, **options).spec
        one = page_bytes(config, spec.page_size, 4)
        assert 0.4 * free < spec.num_pages * one <= 0.5 * free
        pages.append(spec.num_pages)
    assert pages[1] > 1.9 * pages[0]


def test_memory_that_the_largest_batch_needs_is_left_to_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(model)
    batch = batch_bytes(config, tokens=1 << 14, commands=512, element_bytes=4)
    assert batch > batch_bytes(config, tokens=1 << 13, commands=512, element_bytes=4)
    monkeypatch.setattr(loader, "free_bytes", lambda _: batch)
    with pytest.raises(OutOfDeviceMemory):
        load_engine(model, dtype="float32", kv_memory_bytes="auto", max_batch_tokens=1 << 14)


def test_a_worker_takes_auto_from_its_environment(model: Path) -> None:
    env = {"TARTLET_WORKER_KV_MEMORY_BYTES": "auto", "TARTLET_WORKER_MODEL": str(model)}
    settings = load(WorkerSettings, "worker", env=env).settings
    assert settings.kv_memory_bytes == "auto"
    free = free_bytes("cpu")
    engine = engine_from_settings(settings, lambda _: None)
    held = engine.spec.num_pages * page_bytes(read_config(model), engine.spec.page_size, 4)
    assert 0 < held <= free // 2
    fake = load_worker(WorkerSettings(engine="fake", kv_memory_bytes="auto"), lambda _: None)
    assert fake.spec.num_pages == load_worker(WorkerSettings(engine="fake"), lambda _: None).spec.num_pages
    for wrong in ("some", "100"):
        with pytest.raises(InvalidConfig, match="a whole number at least 65536 or auto"):
            load(WorkerSettings, "worker", env={**env, "TARTLET_WORKER_KV_MEMORY_BYTES": wrong})
