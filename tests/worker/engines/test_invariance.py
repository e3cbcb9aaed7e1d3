"""In batch_invariant mode the same tokens in the same columns give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tartlet_common.engine.step import Batch
from tartlet_worker.kernels import available
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, embed_batch, forward_batch, sample_batch
from tests.worker.families import checkpoint
from tests.worker.seeds import rng as fresh

NAMES = ["wide", "llama-one-kv-head-biases", "mistral-window", "qwen3-norms", "qwen3-moe"]
TOKENS = fresh("invariance").integers(0, 320, 150)
SIZES: dict[str, Any] = {"num_pages": 128, "num_embeds": 1024}
PAGES = [40, 7, 21, 3, 60, 11, 33, 2, 50, 9]


@pytest.fixture(params=[(d, k) for d in ("bfloat16", "float32") for k in ("torch", "c")], ids="-".join, scope="module")
def how(request: Any) -> dict[str, Any]:
    dtype, kernels = request.param
    return {"dtype": dtype, "kernels": kernels}


@pytest.fixture(params=NAMES, scope="module")
def d(request: Any, how: dict[str, Any]) -> Driver:
    if how["kernels"] == "c" and not available():
        pytest.skip("the C kernels are not built")
    return Driver(load_engine(checkpoint(request.param), batch_invariant=True, **SIZES, **how))


def alone(d: Driver) -> npt.NDArray[Any]:
    """Logits [150, vocab] of a prefill in one go."""
    d.engine.reset()
    return d.prefill(TOKENS, PAGES)


@pytest.mark.parametrize("cuts", [[3, 17, 18, 100], list(range(100, 150))], ids=["five", "decodes"])
def test_bits_do_not_depend_on_how_prefill_is_split(d: Driver, cuts: list[int]) -> None:
    want = alone(d)
    d.engine.reset()
    parts = [d.prefill(TOKENS[a:z], PAGES, first=a, embed0=a) for a, z in zip([0, *cuts], [*cuts, 150], strict=True)]
    assert np.array_equal(np.concatenate(parts), want)


def test_bits_do_not_depend_on_whether_the_page_list_is_longer_than_the_context(d: Driver) -> None:
    want = alone(d)
    d.engine.reset()
    d.prefill(TOKENS[:100], PAGES[:7])
    d.embed(TOKENS[100:], range(200, 250), range(100, 150))
    d.forward(ikv=PAGES[:7], iemb=range(200, 250), okv=PAGES, okv_offset=100, oemb=range(200, 250))
    assert np.array_equal(d.logits(range(200, 250)), want[100:])


def test_bits_do_not_depend_on_what_else_is_in_the_batch(d: Driver) -> None:
    want = alone(d)
    d.engine.reset()
    rng = fresh("company")
    d.prefill(TOKENS[:90], PAGES)
    commands, page, embed = [], 64, 300
    for lane in range(int(rng.integers(1, 5))):
        n = int(rng.integers(1, 6))
        pages, embeds = list(range(page, page + -(-n // 16))), list(range(embed, embed + n))
        d.embed(rng.integers(0, 320, n), embeds, range(n))
        commands.append({"lane": 10 + lane, "ikv": pages, "iemb": embeds, "okv": pages, "oemb": embeds})
        page, embed = page + len(pages), embed + n
    d.embed(TOKENS[90:93], range(3), range(90, 93))
    mine = {"lane": 1, "ikv": PAGES, "iemb": range(3), "okv": PAGES, "okv_offset": 90, "oemb": range(3)}
    commands.insert(int(rng.integers(0, len(commands) + 1)), mine)
    d.ok(forward_batch(commands))
    logits = d.logits([*rng.integers(300, embed, 2), *range(3)])[2:]
    assert np.array_equal(logits, want[90:93])


def decodes(d: Driver) -> list[npt.NDArray[Any]]:
    """Logits [vocab] of the 65th token, decoded in one batch with 0, 1, 3, 8 and 31 other decodes."""
    d.engine.reset()
    d.prefill(TOKENS[:64], PAGES)
    mine = {"lane": 1, "ikv": PAGES, "iemb": [0], "okv": PAGES, "okv_offset": 64, "oemb": [0]}
    strangers = []
    for i in range(31):
        pages, embed = [64 + 2 * i, 65 + 2 * i], 500 + i
        d.embed(TOKENS[i : i + 20], range(400, 420), range(20))
        d.forward(lane=10 + i, ikv=pages, iemb=range(400, 420), okv=pages)
        command = {"ikv": pages, "iemb": [embed], "okv": pages, "okv_offset": 20, "oemb": [embed]}
        strangers.append({"lane": 10 + i, **command})
    said = []
    for others in (0, 1, 3, 8, 31):
        d.embed([*range(others), TOKENS[64]], [*range(500, 500 + others), 0], [20] * others + [64])
        d.ok(forward_batch([*strangers[:others], mine]))
        said.append(d.logits([*range(500, 500 + others), 0])[-1])
    return said


def test_bits_do_not_depend_on_how_many_decode_at_once(d: Driver) -> None:
    want = alone(d)[64]
    assert all(np.array_equal(got, want) for got in decodes(d))


def test_without_it_bits_do_depend_on_how_many_decode_at_once() -> None:
    """So the wide model is large enough for the tests of this module to fail."""
    first, *others = decodes(Driver(load_engine(checkpoint("wide"), dtype="float32", kernels="torch", **SIZES)))
    assert not all(np.array_equal(got, first) for got in others)


def test_ten_samplers_at_once_give_what_each_gives_alone(d: Driver) -> None:
    """Embed, forward and sample of ten programs in the same batches, against one by one."""
    rng = fresh("ten samplers")
    lengths = rng.integers(3, 40, 10)
    prompts = [rng.integers(0, 320, n) for n in lengths]
    samplers = [
        {"temperature": t, "top_k": k, "top_p": p, "min_p": m, "seed": 100 + i, "draw": i}
        for i, (t, k, p, m) in enumerate(
            [(0, 0, 1, 0), (1, 0, 1, 0), (0.7, 5, 1, 0), (1, 0, 0.9, 0), (1.5, 0, 1, 0.1)] * 2
        )
    ]

    def run(who: list[int]) -> dict[int, list[tuple[int, float]]]:
        d.engine.reset()
        pages = {i: list(range(6 * i, 6 * i + 6)) for i in who}
        for i in who:
            d.prefill(prompts[i], pages[i], embed0=100 * i)
        last = {i: 100 * i + int(lengths[i]) - 1 for i in who}
        texts: dict[int, list[tuple[int, float]]] = {i: [] for i in who}
        for step in range(12):
            batches: list[Batch] = [
                sample_batch([{"lane": i, "embed": last[i], "slot": i, **samplers[i]} for i in who])
            ]
            last = {i: 100 * i + 99 for i in who}
            at = {i: int(lengths[i]) + step for i in who}
            batches += [
                embed_batch([{"lane": i, "embed": [100 * i + 98], "slot": [i], "position": [at[i]]} for i in who]),
                forward_batch(
                    [
                        {
                            "lane": i,
                            "ikv": pages[i],
                            "iemb": [100 * i + 98],
                            "okv": pages[i],
                            "okv_offset": at[i],
                            "oemb": [last[i]],
                        }
                        for i in who
                    ]
                ),
            ]
            sampled = d.ok(*batches).results[0]
            for i, *said in zip(who, sampled.token.tolist(), sampled.logprob.tolist(), strict=True):
                texts[i].append((said[0], said[1]))
        return texts

    together = run(list(range(10)))
    for i in range(10):
        assert run([i])[i] == together[i]
    assert len({tuple(t) for t in together.values()}) > 5
