"""The torch engine on a device that is not the CPU: what is the host's and what is the device's is kept apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_worker.torch_engine import loader
from tartlet_worker.warm_up import warm_up
from tests.worker.driver import Driver, dist_batch, sample_batch
from tests.worker.elsewhere import DEVICE, Device
from tests.worker.engines.test_contract import RandomProgram
from tests.worker.families import checkpoint
from tests.worker.numerics import test_numerics as numerics

AWAY = {"device": str(DEVICE)}


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loader, "check_device", lambda _: None)
    monkeypatch.setattr(loader, "free_bytes", lambda _: 1 << 40)
    with Device():  # type: ignore[no-untyped-call]
        yield


@pytest.mark.parametrize(
    "wrong",
    [
        lambda away, host: away + host,
        lambda away, host: torch.cat([away, host]),
        lambda away, host: host[away.long()] * away,
        lambda away, _: np.asarray(away),
        lambda away, _: away.numpy(),
        lambda away, host: torch.where(away > 0, host, 0.0),
        lambda away, _: away * torch.arange(3),
    ],
)
def test_the_device_finds_what_a_gpu_refuses(wrong: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    away, host = torch.ones(3, device=DEVICE), torch.ones(3)
    assert away.device == DEVICE
    assert (away + 1).cpu().tolist() == away.copy_(host * 2).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises((RuntimeError, TypeError)):
        wrong(away, host)


@pytest.mark.parametrize("name", numerics.FEW)
def test_it_gives_the_logits_of_transformers(name: str) -> None:
    model = numerics.Model(name, **AWAY)
    numerics.close(numerics.hidden_and_masked(model), numerics.truth(model))


def test_it_generates_the_text_of_transformers() -> None:
    numerics.test_greedy_text_of_64_tokens_is_that_of_generate(numerics.Model("qwen3-window", **AWAY))


@pytest.mark.parametrize("attention", ["torch-gather", "torch-chunked"])
def test_random_programs_agree_with_a_plain_float64_model(attention: str) -> None:
    program = RandomProgram("llama3-grouped", attention, 4, seed=3, **AWAY)
    for _ in range(12):
        [program.forward, program.forward, program.mask_page, program.copy][program.rng.integers(4)]()


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_samples_what_the_host_samples(dtype: str, *, batch_invariant: bool) -> None:
    how = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.2, "top_p": 0.8}]
    how += [{"temperature": 1.0, "min_p": 0.05}, {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01}]
    samples = sample_batch([{"embed": i, "slot": i, "seed": 5, "draw": i, **each} for i, each in enumerate(how)])
    dists = dist_batch([{"embed": [i], "top_k": 7} for i in range(len(how))])
    said = []
    for device in ("cpu", str(DEVICE)):
        options: dict[str, Any] = {"dtype": dtype, "batch_invariant": batch_invariant, "num_pages": 8, "num_embeds": 64}
        engine = loader.load_engine(checkpoint("qwen3-norms"), device=device, kernels="torch", **options)
        warm_up(engine)
        driver = Driver(engine)
        driver.prefill(range(20, 30), [3])
        sampled, shown = driver.ok(samples, dists).results
        said.append([sampled.token.tolist(), sampled.logprob.tolist(), shown.dist_token.tolist()])
        said[-1].append(shown.dist_prob.tolist())
    assert said[0] == said[1]
