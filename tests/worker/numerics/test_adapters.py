"""LoRA adapters against PEFT on the same weights: several adapters and none in one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tartlet_common.errors.registry import UnknownAdapter
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.adapters import ADAPTERS, directory, reference
from tests.worker.driver import Driver, changes, forward_batch
from tests.worker.numerics import test_numerics as numerics
from tests.worker.seeds import rng

TOKENS = rng("adapters").integers(0, 320, 40)
MODELS = ["llama3-grouped", "qwen2-bias", "qwen3-norms", "gemma"]
PATHS = [
    "auto",
    pytest.param("flashinfer", marks=numerics.SHADOW),
    pytest.param("triton", marks=numerics.INTERPRETED),
]


def engine(model: str, **options: Any) -> Driver:
    directories = {name: directory(model, name) for name in ADAPTERS}
    sizes: dict[str, Any] = {"dtype": "float32", "num_pages": 64, "num_embeds": 512, "graphs": "off"}
    return Driver(load_engine(model_path(model), **sizes, adapters=directories, **options))


def model_path(model: str) -> Any:
    from tests.worker.families import checkpoint

    return checkpoint(model)


def numbers(d: Driver) -> dict[str, int]:
    return {"": 0, **{adapter.name: adapter.number for adapter in d.engine.spec.adapters}}


@torch.no_grad()
def truth(model: str, name: str, tokens: Any = TOKENS) -> npt.NDArray[Any]:
    return np.asarray(reference(model, name)(torch.as_tensor(tokens)[None]).logits[0].float().numpy())


def close(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(
    ("path", "invariant"),
    [
        ("auto", False),
        ("auto", True),
        pytest.param("flashinfer", False, marks=numerics.SHADOW),
        pytest.param("triton", True, marks=numerics.INTERPRETED),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_several_adapters_and_none_in_one_batch_give_the_logits_of_peft(
    model: str, path: str, *, invariant: bool
) -> None:
    d = engine(model, attention=path, batch_invariant=invariant)
    number = numbers(d)
    assert "Adapter" in d.engine.spec.traits
    d.ok_step(tables=changes((0, 0, 0, [50, 51, 52])))
    names = ["all", "", "stabilised", "patterns", "all"]
    lengths = [40, 7, 33, 21, 1]
    commands: list[dict[str, Any]] = []
    for i, (name, n) in enumerate(zip(names, lengths, strict=True)):
        embeds, pages = range(50 * i, 50 * i + n), range(3 * i, 3 * i + 3)
        d.embed(TOKENS[:n], embeds, range(n))
        where = {"table": 0} if name == "" else {"ikv": pages, "okv": pages}
        commands.append({"lane": i, "iemb": embeds, "oemb": embeds, "adapter": number[name], **where})
    before = d.engine.decoder.passes
    d.ok(forward_batch(commands))
    assert d.engine.decoder.passes == before + 1
    for name, n, command in zip(names, lengths, commands, strict=True):
        want = truth(model, name)
        close(d.logits(command["oemb"]), want[:n])
        if name:
            assert np.abs(want - truth(model, "")).max() > 1e-2 * np.abs(want).max(), "the adapter changes the model"


@pytest.mark.parametrize("path", PATHS)
def test_decode_steps_go_on_under_the_adapter_of_their_context(path: str) -> None:
    model = "llama3-grouped"
    d = engine(model, attention=path)
    number = numbers(d)
    names = ["all", "", "stabilised"]
    got: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
    alone = 40 - numerics.one_by_one(numerics.Model(model, attention=path), 20)
    for start, end in [(0, alone), *((i, i + 1) for i in range(alone, 40))]:
        commands = []
        for i, name in enumerate(names):
            embeds, pages = range(50 * i, 50 * i + end - start), [3 * i, 3 * i + 1, 3 * i + 2]
            d.embed(TOKENS[start:end], embeds, range(start, end))
            commands.append({"lane": i, "iemb": embeds, "oemb": embeds, "ikv": pages, "okv": pages,
                             "okv_offset": start, "adapter": number[name]})  # fmt: skip
        d.ok(forward_batch(commands))
        for i, name in enumerate(names):
            got[name].append(d.logits(range(50 * i, 50 * i + end - start)))
    for name in names:
        close(np.concatenate(got[name]), truth(model, name))


@pytest.mark.parametrize("path", PATHS)
def test_a_long_command_that_is_split_keeps_its_adapter(path: str) -> None:
    model = "llama3-grouped"
    d = engine(model, attention=path, max_batch_tokens=16)
    d.embed(TOKENS, range(40), range(40))
    number = numbers(d)["all"]
    d.ok(forward_batch([{"iemb": range(40), "oemb": range(40), "ikv": [1, 2, 3], "okv": [1, 2, 3], "adapter": number}]))
    close(d.logits(range(40)), truth(model, "all"))


def test_an_adapter_that_the_engine_lacks_fails_its_own_command() -> None:
    d = engine("llama3-grouped")
    d.embed(TOKENS[:2], [0, 1], [0, 0])
    commands = [{"lane": i, "iemb": [i], "okv": [i], "oemb": [i], "adapter": 7 * i} for i in range(2)]
    result = d.run(forward_batch(commands))
    assert result.status.tolist() == [0, 2]
    assert result.error.tolist() == [0, UnknownAdapter.number]


@pytest.mark.parametrize("path", PATHS)
def test_adapters_come_and_go_between_two_steps(path: str) -> None:
    model = "llama3-grouped"
    sizes: dict[str, Any] = {"dtype": "float32", "num_pages": 64, "num_embeds": 512, "graphs": "off"}
    d = Driver(load_engine(model_path(model), **sizes, live_adapters=True, attention=path))
    live = d.engine.adapters
    assert live is not None
    assert d.engine.spec.live_adapters
    assert "Adapter" in d.engine.spec.traits
    number: dict[str, int] = {"": 0}

    def add(name: str) -> None:
        checked = live.check(name, directory(model, name))
        live.load(checked)()
        number[name] = checked.spec.number

    def compute(*names: str) -> Any:
        d.embed(TOKENS, range(40), range(40))
        commands = [
            {"lane": i, "iemb": range(40), "oemb": range(50 * i + 50, 50 * i + 90), "ikv": range(3 * i, 3 * i + 3),
             "okv": range(3 * i, 3 * i + 3), "adapter": number[name]}
            for i, name in enumerate(names)
        ]  # fmt: skip
        return d.run(forward_batch(commands))

    def right(*names: str) -> None:
        assert compute(*names).status.tolist() == [0] * len(names)
        for i, name in enumerate(names):
            close(d.logits(range(50 * i + 50, 50 * i + 90)), truth(model, name))

    right("")
    add("all")
    right("", "all")
    add("patterns")
    right("patterns", "all", "")
    live.remove(number["all"])
    result = compute("all", "patterns", "")
    assert result.status.tolist() == [2, 0, 0]
    assert result.error.tolist() == [UnknownAdapter.number, 0, 0]
    d.step(reset_lanes=np.array([0], np.uint32))
    right("", "patterns")
    add("stabilised")
    add("all")
    right("all", "stabilised", "", "patterns")
