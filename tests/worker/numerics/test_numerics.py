"""The torch engine against transformers on the same random weights, for every family."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tartlet_common.errors.registry import ContextTooLong
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, embed_batch, forward_batch, mask_batch, sample_batch
from tests.worker.families import CONFIGS, checkpoint, reference
from tests.worker.seeds import rng as fresh

TOKENS = fresh("numerics").integers(0, 320, 75)
FEW = ["llama32-tied-scaled", "mistral-window", "qwen2-window", "qwen3-norms"]


class Model(NamedTuple):
    """What is held against transformers."""

    name: str
    kernels: str = "auto"  # C where they are built
    device: str = "cpu"
    attention: str = "auto"


CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))
SHADOW = pytest.mark.skipif(torch.cuda.is_available(), reason="FlashInfer itself may be there, in place of its shadow")
INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles")
SOAK = {"llama32-tied-scaled", "mistral-window"}
"""Models that Triton's interpreter runs through all tests in `make soak` alone, because it is slow."""


def on(path: str, names: Iterable[str], soak: Collection[str] = ()) -> list[Any]:
    """Models that attend by a path of GPUs, on the CPU."""
    marks = {"flashinfer": SHADOW, "triton": INTERPRETED}[path]
    return [
        pytest.param(
            Model(name, attention=path), id=f"{name}-{path}", marks=(marks, pytest.mark.soak) if name in soak else marks
        )
        for name in names
    ]


OTHERS = [
    *(pytest.param(Model(name, "torch"), id=f"{name}-torch") for name in FEW),  # what other devices run
    *on("flashinfer", FEW),
    *on("triton", FEW, SOAK),
    pytest.param(Model("qwen3-window", device="cuda"), id="qwen3-window-cuda", marks=CUDA),
]
REST = [name for name in CONFIGS if name not in FEW]
EVERY = [*(pytest.param(Model(name), id=name) for name in CONFIGS), *OTHERS]
SOME = [*(pytest.param(Model(name), id=name) for name in FEW), *OTHERS]


@pytest.fixture(scope="module", params=EVERY)
def model(request: Any) -> Model:
    return cast("Model", request.param)


def one_by_one(model: Model, count: int) -> int:
    """Return how many of a test's tokens are decoded alone. Triton's interpreter takes 0.3 seconds for each."""
    return 3 if model.attention == "triton" and model.device == "cpu" else count


def engine(model: Model, **options: Any) -> Driver:
    sizes = {"dtype": "float32", "num_pages": 64, "num_embeds": 512}
    where = {"kernels": model.kernels, "device": model.device, "attention": model.attention, "graphs": "off"}
    return Driver(load_engine(checkpoint(model.name), **{**sizes, **where, **options}))


@torch.no_grad()
def truth(model: Model, tokens: Any = TOKENS, dtype: Any = torch.float32) -> npt.NDArray[Any]:
    """transformers' logits [N, vocab] float32, on a CPU."""
    return np.asarray(reference(model.name, dtype)(torch.as_tensor(tokens)[None]).logits[0].float().numpy())


def close(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("model", [*EVERY, *on("flashinfer", REST), *on("triton", [*SOAK, *REST])])
def test_prefill_gives_the_logits_of_transformers(model: Model) -> None:
    close(engine(model).prefill(TOKENS, [9, 2, 40, 7, 5]), truth(model))


def test_split_prefill_then_decode_gives_the_same(model: Model) -> None:
    d = engine(model)
    pages = [11, 3, 30, 8, 1]
    parts = [d.prefill(TOKENS[:21], pages)]
    alone = 75 - one_by_one(model, 15)
    parts.append(d.prefill(TOKENS[21:alone], pages, first=21, embed0=100))
    parts += [d.prefill(TOKENS[i : i + 1], pages, first=i, embed0=200) for i in range(alone, 75)]
    close(np.concatenate(parts), truth(model))


@torch.no_grad()
def bounded(model: Model, computed: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
    """Errors of bf16 logits, which `computed` gives for tokens, are at most half more than those of transformers.

    The largest one is at most twice as large: in one draw of a thousand it was more than half more.
    """

    def errors(tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        exact = truth(model, tokens)
        return np.abs(computed(tokens) - exact), np.abs(truth(model, tokens, torch.bfloat16) - exact)

    if not CONFIGS[model.name].get("num_experts"):
        mine, theirs = errors(TOKENS)
        assert np.sqrt((mine**2).mean()) <= 1.5 * np.sqrt((theirs**2).mean())
        assert mine.max() <= 2 * theirs.max()
        return
    # Rounding turns a router's choice, there or here, after which a text's errors may be three times as large.
    texts = [TOKENS, *fresh(f"texts for {model.name}").integers(0, 320, (6, len(TOKENS)))]
    assert np.median([np.divide(*np.median(errors(text), (1, 2))) for text in texts]) <= 1.5


def test_bf16_error_is_at_most_half_more_than_that_of_transformers(model: Model) -> None:
    def computed(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
        d, pages = engine(model, dtype="bfloat16"), [1, 2, 3, 4, 5]
        return np.concatenate([d.prefill(tokens[:40], pages), d.prefill(tokens[40:], pages, first=40)])

    bounded(model, computed)


def hidden_and_masked(model: Model, tokens: npt.NDArray[Any] = TOKENS, **options: Any) -> npt.NDArray[Any]:
    """Logits [75, vocab] of tokens by prefill, by decode, with a mask, over pages with gaps and in another order."""
    d, pages = engine(model, **options), [11, 3, 30, 8, 1]
    parts = [d.prefill(tokens[:21], pages)]
    d.embed(tokens[21:40], range(100, 119), range(21, 40))
    mask = np.zeros((19, 5 * 16 + 19), bool)
    mask[:, :21] = True  # what is there
    mask[:, 80:] = np.tri(19, dtype=bool)  # and each other, causally: said by mask instead of by position
    d.forward(ikv=pages, iemb=range(100, 119), okv=pages, okv_offset=21, oemb=range(100, 119), mask=mask)
    parts.append(d.logits(range(100, 119)))
    # A stranger's tokens, hidden, in a page of the list; our own pages backwards, and an empty one after them.
    d.embed([5, 6], [200, 201], [70, 71])
    d.forward(ikv=[50], iemb=[200, 201], okv=[50], oemb=[])
    d.ok(mask_batch(50, 0b11))
    for a, z in pairwise([*range(40, 40 + one_by_one(model, 35)), 75]):
        embeds = range(300, 300 + z - a)
        d.embed(tokens[a:z], embeds, range(a, z))
        d.forward(ikv=[50, *pages[::-1], 60], iemb=embeds, okv=pages, okv_offset=a, oemb=embeds)
        parts.append(d.logits(embeds))
    return np.concatenate(parts)


def test_masks_decode_gaps_and_page_order_give_the_logits_of_transformers(model: Model) -> None:
    close(hidden_and_masked(model), truth(model))


def test_bf16_error_of_masks_decode_gaps_and_page_order_is_bounded_alike(model: Model) -> None:
    bounded(model, lambda tokens: hidden_and_masked(model, tokens, dtype="bfloat16"))


def a_prompt_with_clear_choices(model: Model) -> tuple[npt.NDArray[Any], list[int]]:
    """A prompt of 20 tokens and the 64 that transformers generates, none of which has a rival within rounding."""
    draw = fresh(f"prompt {model.name}")
    for _ in range(20):
        prompt = draw.integers(0, 320, 20)
        with torch.no_grad():
            shown = torch.as_tensor(prompt)[None]
            everything = torch.ones_like(shown)  # else `generate` hides each token that is the padding's
            text = reference(model.name, torch.float32).generate(
                shown, attention_mask=everything, max_new_tokens=64, do_sample=False, pad_token_id=0
            )[0]
        logits = truth(model, text)[19:-1]
        best = np.sort(logits, axis=1)
        if (best[:, -1] - best[:, -2]).min() > 3e-4 * np.abs(logits).max():
            return prompt, text[20:].tolist()
    raise AssertionError("twenty prompts in a row have near ties")


@torch.no_grad()
def test_greedy_text_of_64_tokens_is_that_of_generate(model: Model) -> None:
    prompt, want = a_prompt_with_clear_choices(model)
    d = engine(model)
    pages = list(range(6))
    d.prefill(prompt, pages)
    d.ok(sample_batch([{"embed": 19, "slot": 0}]))
    text = [int(d.engine.pools.slot_token[0])]
    more = one_by_one(model, 63)
    for position in range(20, 20 + more):
        # The token goes from its slot into the next embed without leaving the engine.
        result = d.ok(
            embed_batch([{"embed": [100], "slot": [0], "position": [position]}]),
            forward_batch([{"ikv": pages, "iemb": [100], "okv": pages, "okv_offset": position, "oemb": [101]}]),
            sample_batch([{"embed": 101, "slot": 0}]),
        )
        text.append(int(result.results[2].token[0]))
    assert text == want[: 1 + more]


def test_dynamic_rope_ends_where_its_frequencies_would_change() -> None:
    model, limit = Model("llama-dynamic-rope"), 84
    tokens = np.resize(TOKENS, limit + 1)
    want = truth(model, tokens[:limit])
    assert np.abs(truth(model, tokens)[:limit] - want).max() > 1e-2 * np.abs(want).max(), "one more changes all"
    d = engine(model)
    close(d.prefill(tokens[:limit], range(6)), want)
    answer = d.run(embed_batch([{"embed": [100], "token": [1], "position": [limit]}]))
    assert answer.error.tolist() == [ContextTooLong.number]


@pytest.mark.parametrize("model", SOME)
@pytest.mark.parametrize("page_size", [1, 3, 32])
def test_page_size_and_page_order_do_not_matter(model: Model, page_size: int) -> None:
    d = engine(model, page_size=page_size, num_pages=128)
    pages = fresh(f"page size {page_size}").permutation(128)[: -(-75 // page_size)].tolist()
    d.prefill(TOKENS[:50], pages)
    want = truth(model)
    # Listed backwards, and with unwritten pages between them.
    d.embed(TOKENS[50:], range(300, 325), range(50, 75))
    spare = next(p for p in range(128) if p not in pages)
    d.forward(ikv=[*pages[::-1], spare], iemb=range(300, 325), okv=pages, okv_offset=50, oemb=range(300, 325))
    close(d.logits(range(300, 325)), want[50:])


@pytest.mark.parametrize("model", SOME)
def test_commands_of_one_batch_do_not_see_each_other(model: Model) -> None:
    d = engine(model)
    lengths = [1, 5, 17, 30, 5, 40, 1, 1, 75, 5, 2, 5]
    commands: list[dict[str, Any]] = []
    start = page = 0
    for i, n in enumerate(lengths):
        pages = list(range(page, page + -(-n // 16)))
        embeds = list(range(start, start + n))
        d.embed(TOKENS[:n], embeds, range(n))
        commands.append({"lane": i, "ikv": pages, "iemb": embeds, "okv": pages, "oemb": embeds[-1:]})
        start, page = start + n, page + len(pages)
    d.ok(forward_batch(commands))
    want = truth(model)
    close(d.logits([c["oemb"][0] for c in commands]), want[np.array(lengths) - 1])


def test_tokens_that_are_not_stored_are_still_attended_within_their_call(model: Model) -> None:
    d = engine(model)
    d.prefill(TOKENS[:20], [3, 4])
    d.embed(TOKENS[20:], range(100, 155), range(20, 75))
    d.forward(ikv=[3, 4], iemb=range(100, 155), oemb=range(100, 155))
    close(d.logits(range(100, 155)), truth(model)[20:])
    # And nothing of them stays.
    assert (d.engine.pools.position[:64] >= 0).sum() == 20


@pytest.mark.parametrize("model", SOME)
def test_a_later_command_of_a_batch_reads_pages_that_an_earlier_one_writes(model: Model) -> None:
    d = engine(model)
    d.embed(TOKENS, range(75), range(75))
    pages = [8, 1, 5, 2, 9]
    cuts = [0, 10, 24, 40, 75]
    commands = [
        {"ikv": pages, "iemb": range(a, z), "okv": pages, "okv_offset": a, "oemb": range(a, z)}
        for a, z in pairwise(cuts)
    ]
    before = d.engine.decoder.passes
    d.ok(forward_batch(commands))
    assert d.engine.decoder.passes == before + 1
    close(d.logits(range(75)), truth(model))
