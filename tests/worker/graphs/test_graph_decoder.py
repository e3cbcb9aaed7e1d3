"""Decode steps through graphs give what they give without, and keep the rules of a capture; on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch

from tartlet_common.engine.step import Step, StepResult
from tartlet_worker.attention.triton_paged import TritonPaged
from tartlet_worker.graphs.decoder import GraphDecoder
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, changes, copy_batch, dist_batch, embed_batch, forward_batch, sample_batch
from tests.worker.engines.test_contract import RandomProgram
from tests.worker.engines.test_page_tables import Pair
from tests.worker.families import checkpoint
from tests.worker.graphs.recorder import GatheredStatic, NotCaptured, Recorder, as_in_a_capture, with_recorded_graphs
from tests.worker.numerics import test_numerics as numerics
from tests.worker.seeds import rng as fresh

BUCKETS = (1, 2, 4, 8)
SIZE = 4


def plain_driver(name: str, **options: Any) -> Driver:
    sizes = {"page_size": SIZE, "num_pages": 96, "num_embeds": 96, "attention": "torch-gather", "dtype": "float32"}
    return Driver(load_engine(checkpoint(name), **{**sizes, **options}))


def graph_driver(name: str, **options: Any) -> tuple[Driver, Recorder, GraphDecoder]:
    engine, recorder = with_recorded_graphs(plain_driver(name, **options).engine, BUCKETS)
    assert isinstance(engine.decoder, GraphDecoder)
    return Driver(engine), recorder, engine.decoder


def captured(driver: Driver, attention: str) -> Driver:
    """Return a driver of the same engine with recorded graphs, in which it attends as before or by gathering."""
    made = None if attention == "torch-gather" else cast("TorchDecoder", driver.engine.decoder).attention
    few = attention == "triton"  # its interpreter is slow, and copies what a capture can't
    return Driver(with_recorded_graphs(driver.engine, (1, 2) if few else BUCKETS, made, strict=not few)[0])


class Programs:
    """Contexts over tables or page lists that decode side by side, on two engines alike."""

    def __init__(self, drivers: list[Driver], contexts: int, seed: str, *, lists: bool) -> None:
        self.rng, self.drivers, self.count, self.lists = fresh(seed), drivers, contexts, lists
        self.pages = [self.rng.permutation(96)[10 * t : 10 * t + 10].tolist() for t in range(contexts)]
        order = self.rng.permutation(96)
        self.pages = [order[10 * t : 10 * t + 10].tolist() for t in range(contexts)]
        self.length = [0] * contexts
        self.rows = [0] * contexts
        self.draw = 0

    def _command(self, t: int, embeds: list[int], out: int) -> dict[str, Any]:
        first, n = self.length[t], len(embeds)
        command = {"iemb": embeds, "oemb": [out], "okv_offset": first, "lane": t + 1}
        if self.lists:
            used = -(-(first + n) // SIZE)
            return command | {"ikv": self.pages[t][:used], "okv": self.pages[t][:used]}
        return command | {"table": t}

    def _grow(self, t: int, tokens: int) -> tuple[tuple[int, int, int, list[int]], ...]:
        need = -(-(self.length[t] + tokens) // SIZE)
        had, self.rows[t] = self.rows[t], max(need, self.rows[t])
        return () if self.lists or need <= had else ((t, t, had, self.pages[t][had:need]),)

    def prefill(self, t: int, tokens: int) -> None:
        given = self.rng.integers(0, 300, tokens).tolist()
        embeds = [int(e) for e in range(16, 16 + tokens)]
        grown = self._grow(t, tokens)
        batches = (
            embed_batch([{"embed": embeds, "token": given, "position": range(tokens), "lane": t + 1}]),
            forward_batch([self._command(t, embeds, 40 + t)]),
            sample_batch([{"embed": 40 + t, "slot": t, "lane": t + 1}]),
        )
        self._same(batches, tables=changes(*grown))
        self.length[t] = tokens

    def decode(self, chosen: list[int], *, hot: bool = False, top_k: int = 0) -> None:
        self.draw += 1
        grown = [change for t in chosen for change in self._grow(t, 1)]
        asked: dict[str, Any] = {"temperature": 0.9, "top_k": top_k, "min_p": 0.02} if hot else {}
        batches = (
            embed_batch([{"embed": [t], "slot": [t], "position": [self.length[t]], "lane": t + 1} for t in chosen]),
            forward_batch([self._command(t, [t], 40 + t) for t in chosen]),
            sample_batch(
                [
                    {"embed": 40 + t, "slot": t, "lane": t + 1, "seed": 7 + t, "draw": self.draw}
                    | (asked if t % 2 else {})
                    for t in chosen
                ]
            ),
        )
        self._same(batches, tables=changes(*grown))
        for t in chosen:
            self.length[t] += 1

    def _same(self, batches: Any, **fields: Any) -> None:
        results = [
            driver.ok(*batches) if not fields else self._step(driver, batches, fields) for driver in self.drivers
        ]
        told = [result.results[2] for result in results]
        assert told[0].token.tolist() == told[1].token.tolist()
        np.testing.assert_allclose(told[0].logprob, told[1].logprob, atol=1e-4)

    @staticmethod
    def _step(driver: Driver, batches: Any, fields: dict[str, Any]) -> StepResult:
        result = driver.engine.step(Step(1, batches, **fields))
        for answer in result.results:
            assert not answer.status.any(), answer.detail
        return result

    def compare_pools(self) -> None:
        mine, theirs = (driver.engine.pools for driver in self.drivers)
        count = mine.sizes.num_embeds
        torch.testing.assert_close(mine.embeds[:count], theirs.embeds[:count], atol=1e-4, rtol=1e-4)
        pages = mine.sizes.num_pages
        torch.testing.assert_close(mine.kv[:, :, :pages], theirs.kv[:, :, :pages], atol=1e-4, rtol=1e-4)
        assert np.array_equal(mine.embed_position, theirs.embed_position)
        assert np.array_equal(mine.tables.plain, theirs.tables.plain)


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("name", ["llama3-grouped", "qwen2-window", "gemma"])
def test_decode_through_graphs_gives_what_it_gives_without(name: str, *, lists: bool) -> None:
    driver, recorder, decoder = graph_driver(name)
    programs = Programs([driver, plain_driver(name)], 7, f"graphs {name}", lists=lists)
    for t in range(7):
        programs.prefill(t, int(programs.rng.integers(1, 12)))
    before = decoder.replays  # of prompts of one token
    for turn in range(24):
        chosen = programs.rng.permutation(7)[: int(programs.rng.integers(1, 8))].tolist()
        programs.decode(chosen, hot=turn % 3 == 1, top_k=5 if turn % 9 == 4 else 0)
    programs.compare_pools()
    assert decoder.replays == before + 24
    assert len([n for n in recorder.replays if n]) > 8  # of several buckets, reaches and ways to sample


def test_a_long_context_and_a_large_batch_run_without_graphs() -> None:
    driver, _, decoder = graph_driver("llama3-grouped")
    attention = decoder.attention
    assert isinstance(attention, GatheredStatic)
    programs = Programs([driver, plain_driver("llama3-grouped")], 9, "graphs fall back", lists=False)
    for t in range(9):
        programs.prefill(t, 3)
    programs.decode(list(range(9)))
    assert decoder.replays == 0
    programs.decode(list(range(8)))
    assert decoder.replays == 1
    for made in decoder.layers.values():
        made[:] = [layers for layers in made if layers.reach <= 16]
    while programs.length[0] < 16:
        programs.decode([0])
    replays = decoder.replays
    programs.decode([0])
    assert decoder.replays == replays


def test_attention_is_told_of_the_rows_before_every_replay() -> None:
    driver, _, decoder = graph_driver("llama3-grouped")
    programs = Programs([driver, plain_driver("llama3-grouped")], 3, "graphs fill", lists=False)
    for t, tokens in enumerate((3, 5, 11)):
        programs.prefill(t, tokens)
    attention = decoder.attention
    assert isinstance(attention, GatheredStatic)
    before = {id(static): len(static.filled) for static in attention.made}
    assert set(before.values()) == {1}  # for the capture
    programs.decode([2, 0, 1])
    (used,) = [static for static in attention.made if len(static.filled) == 2]
    assert used.filled[-1] == ([3, 1, 2, 1], [11, 3, 5, 0])  # the last row fills the batch up


def test_rows_that_fill_up_leave_no_trace() -> None:
    driver, _, decoder = graph_driver("llama3-grouped")
    programs = Programs([driver, plain_driver("llama3-grouped")], 3, "graphs padding", lists=False)
    for t in range(3):
        programs.prefill(t, 2)
    pools = decoder.pools
    zero = pools.kv[:, :, pools.zero_page].clone()
    programs.decode([0, 1, 2])
    assert torch.equal(pools.kv[:, :, pools.zero_page], zero)
    assert not pools.kv[:, :, pools.zero_page].any()
    programs.compare_pools()


def test_what_is_put_off_is_computed_before_anything_else_reads_it() -> None:
    def run(driver: Driver) -> list[Any]:
        seen: list[Any] = []
        driver.prefill([1, 2, 3], [0, 1])
        batches = (
            embed_batch([{"embed": [20], "token": [9], "position": [3]}]),
            forward_batch([{"ikv": [0], "okv": [0], "okv_offset": 3, "iemb": [20], "oemb": [21]}]),
        )
        seen.append(driver.ok(*batches, dist_batch([{"embed": [21], "top_k": 3}])).results[2].dist_token.tolist())
        driver.ok(*batches, copy_batch(0, 5, 0, 0, SIZE))
        seen.append(driver.engine.pools.kv[:, :, 5].clone())
        driver.ok(embed_batch([{"embed": [22], "token": [8], "position": [0]}]))  # nothing follows in its step
        seen.append(driver.engine.pools.embeds[22].clone())
        two = [{"embed": [23], "token": [7], "position": [4]}, {"embed": [24], "token": [6], "position": [9]}]
        one = forward_batch([{"ikv": [0], "okv": [0, 1], "okv_offset": 4, "iemb": [23], "oemb": [25]}])
        driver.ok(embed_batch(two), one)  # an embed that no row reads
        seen.append(driver.engine.pools.embeds[22:26].clone())
        chain: list[Any] = [
            forward_batch([{"iemb": [24], "oemb": [26], "ikv": [0, 1]}]),  # stores nothing: not plain
            sample_batch([{"embed": 26, "slot": 0}]),
        ]
        seen.append(driver.ok(*chain).results[1].token.tolist())
        return seen

    driver, _, decoder = graph_driver("llama3-grouped")
    mine, theirs = run(driver), run(plain_driver("llama3-grouped"))
    assert decoder.replays == 3
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
        else:
            assert a == b


@pytest.mark.parametrize("count", [5, 7])
def test_a_command_longer_than_a_pass_reads_embeds_that_were_put_off(count: int) -> None:
    """Its outputs go to the embeds that it reads, in the other order; a last part of one token is put off, too."""
    embeds = range(20, 20 + count)
    batches = (
        embed_batch([{"embed": embeds, "token": range(7, 7 + count), "position": range(count)}]),
        forward_batch([{"iemb": embeds, "oemb": embeds[::-1], "okv": [3, 8]}]),
        dist_batch([{"embed": embeds, "top_k": 3}]),
    )
    driver, _, decoder = graph_driver("llama3-grouped", max_batch_tokens=4)
    whole = plain_driver("llama3-grouped")
    mine, theirs = driver.ok(*batches).results[2], whole.ok(*batches).results[2]
    assert decoder.passes == decoder.replays + 1 == 2 if count == 5 else decoder.passes == 2
    assert mine.dist_token.tolist() == theirs.dist_token.tolist()
    pools, want = driver.engine.pools, whole.engine.pools
    torch.testing.assert_close(pools.embeds[20 : 20 + count], want.embeds[20 : 20 + count], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(pools.kv[:, :, [3, 8]], want.kv[:, :, [3, 8]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("graphs", [False, True])
def test_the_last_token_of_an_embed_counts_in_whatever_order_a_device_writes(
    *, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = graph_driver("llama3-grouped")[0] if graphs else plain_driver("llama3-grouped")
    engine, copy = driver.engine, torch.Tensor.index_copy_

    def backwards(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return copy(target, dim, index.flip(0), source.flip(dim))

    monkeypatch.setattr(torch.Tensor, "index_copy_", backwards)
    driver.ok(embed_batch([{"embed": [20], "token": [9], "position": [0]}]))
    want = engine.pools.embeds[20].clone()
    made = ((20, 3, 4), (21, 5, 2), (20, 9, 1))
    driver.ok(embed_batch([{"embed": [e], "token": [token], "position": [at]} for e, token, at in made]))
    assert torch.equal(engine.pools.embeds[20], want)
    assert engine.pools.embed_position[[20, 21]].tolist() == [1, 2]


def test_a_step_copies_once_up_and_once_down(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _, decoder = graph_driver("llama3-grouped")
    programs = Programs([driver, plain_driver("llama3-grouped")], 2, "graphs copies", lists=False)
    for t in range(2):
        programs.prefill(t, SIZE)
    transfers, copies = decoder.pools.transfers, []
    for name in ("up", "up_into", "down"):
        call = getattr(transfers, name)

        def noted(*args: Any, call: Any = call, name: str = name) -> Any:
            copies.append(name)
            return call(*args)

        monkeypatch.setattr(transfers, name, noted)
    monkeypatch.setattr(decoder.pools, "index", None)
    monkeypatch.setattr(decoder.pools, "indices", None)
    programs.decode([0, 1])  # their tables grow in this step
    programs.decode([0, 1], hot=True)
    assert copies == ["up_into", "down"] * 2


@pytest.mark.parametrize(
    ("name", "attention", "size", "seed"),
    [
        ("llama3-grouped", "torch-gather", 4, 0),
        ("qwen2-window", "torch-gather", 1, 1),
        pytest.param("qwen2-window", "flashinfer", 4, 2, marks=numerics.SHADOW),
        pytest.param("qwen3-norms", "triton", 4, 3, marks=numerics.INTERPRETED),
    ],
)
def test_random_programs_agree_with_a_plain_float64_model(name: str, attention: str, size: int, seed: int) -> None:
    program = RandomProgram(name, attention, size, seed)
    program.d = captured(program.d, attention)
    for _ in range(8 if attention == "triton" else 30):
        [program.forward, program.forward, program.mask_page, program.copy][program.rng.integers(4)]()


@pytest.mark.parametrize(
    ("attention", "seed"),
    [
        ("torch-gather", 0),
        ("torch-gather", 1),
        pytest.param("flashinfer", 2, marks=numerics.SHADOW),
        pytest.param("triton", 3, marks=numerics.INTERPRETED),
    ],
)
def test_commands_over_tables_give_what_page_lists_give(attention: str, seed: int) -> None:
    pair = Pair("qwen2-window", "float32", {"attention": attention}, seed)
    pair.tables = captured(pair.tables, attention)
    decoder, steps = pair.tables.engine.decoder, 0
    assert isinstance(decoder, GraphDecoder)
    few = attention == "triton"
    while steps < (10 if few else 80) or not decoder.replays:  # some draw no plain decode for long
        pair.step()
        steps += 1


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off")
def test_triton_tiles_made_on_the_device_give_what_gathering_gives() -> None:
    plain = plain_driver("qwen2-window", page_size=SIZE)
    engine, recorder = with_recorded_graphs(
        plain_driver("qwen2-window").engine, (2,), TritonPaged(2, "cpu", group=2), strict=False
    )
    programs = Programs([Driver(engine), plain], 2, "graphs triton", lists=False)
    for t, tokens in enumerate((5, 9)):
        programs.prefill(t, tokens)
    for chosen in ([0, 1], [1], [0, 1]):
        programs.decode(chosen)
    programs.compare_pools()
    assert sum(recorder.replays) == 8  # two prompts are sampled too


def test_the_recorder_refuses_what_a_graph_can_not_hold() -> None:
    values = torch.ones(2)
    refused: list[tuple[str, Callable[[Any], Any]]] = [
        ("item", lambda t: t.sum().item()), ("cpu", lambda t: t.cpu()), ("tensor", lambda _: torch.tensor([1])),
        ("__bool__", lambda t: bool(t.any())), ("nonzero", lambda t: t.nonzero()),
    ]  # fmt: skip
    for name, call in refused:
        with pytest.raises(NotCaptured, match=name), as_in_a_capture():
            call(values)
    recorder = Recorder()
    tensors = {"moved": torch.zeros(1)}
    recorder.lasting = lambda: tensors
    replay = recorder.graph(lambda: None)
    tensors["moved"] = torch.zeros(2)
    with pytest.raises(AssertionError):
        replay()
