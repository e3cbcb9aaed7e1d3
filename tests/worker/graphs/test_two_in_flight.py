"""The next decode step begins before the last one is read, and gives what it gives one at a time; on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch

from tartlet_common.engine.step import Sample, Status, Step, StepResult
from tartlet_common.errors.registry import EngineFailure, OutOfDeviceMemory
from tartlet_worker.attention.base import PlanChanged
from tartlet_worker.attention.flashinfer_static import FlashInferStatic
from tartlet_worker.graphs import decoder as decoder_module
from tartlet_worker.graphs.ahead import Ahead
from tartlet_worker.graphs.decoder import GraphDecoder, Launched, PutOff
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.torch_engine.engine import TorchEngine
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import changes, dist_batch, embed_batch, forward_batch, i32, sample_batch, u32
from tests.worker.families import checkpoint
from tests.worker.graphs.decode_streams import PAGES, SIZE, Stream, compare, compare_pools, with_stops
from tests.worker.graphs.late_device import device_of
from tests.worker.graphs.recorder import with_recorded_graphs
from tests.worker.numerics import test_numerics as numerics
from tests.worker.seeds import rng as fresh

TURNS = 9
"""How often tests draw random steps, at most, until enough of them are of the kind that they are about."""


class Rig:
    """An engine whose decode steps run as graphs, and what it launched ahead."""

    def __init__(self, engine: TorchEngine) -> None:
        assert isinstance(engine.decoder, GraphDecoder)
        self.engine, self.decoder = engine, engine.decoder
        self.ahead: list[Ahead] = []
        launch = self.decoder.launch

        def noted(ahead: Ahead) -> Launched | None:
            launched = launch(ahead)
            self.ahead += [ahead] if launched is not None else []
            return launched

        self.decoder.launch = noted  # type: ignore[method-assign]

    def run(self, steps: Sequence[Step], late: Callable[[], bool] = lambda: False) -> list[StepResult]:
        """Run steps; each asks for the next one, which isn't there yet if `late` says so."""

        def following(at: int) -> Step | None:
            return None if late() or at + 1 == len(steps) else steps[at + 1]

        return [self.engine.step(step, following=partial(_ask, following, at)) for at, step in enumerate(steps)]


def _ask(following: Callable[[int], Step | None], at: int, _: Callable[[], bool]) -> Step | None:
    return following(at)


def recorded(name: str, attention: str = "torch-gather") -> Rig:
    engine = plain(name, attention=attention)
    captured = None if attention == "torch-gather" else cast("TorchDecoder", engine.decoder).attention
    few = attention == "triton"  # its interpreter is slow, and copies what a capture can't
    return Rig(with_recorded_graphs(engine, (1, 2) if few else (1, 2, 4, 8), captured, strict=not few)[0])


def plain(name: str, **options: Any) -> TorchEngine:
    sizes = {"page_size": SIZE, "num_pages": PAGES, "num_embeds": 128, "num_slots": 16, "attention": "torch-gather"}
    return load_engine(checkpoint(name), **{**sizes, "dtype": "float32", "graphs": "off", **options})


def drawn(name: str, seed: str, count: int, **how: Any) -> tuple[list[Step], list[StepResult], TorchEngine]:
    """Draw steps with stop tokens that are really sampled; return them, their results one at a time, and the engine."""
    rng = fresh(seed)
    steps = Stream(rng, **how).steps(count)
    engine = plain(name)
    first = [engine.step(step) for step in steps]
    steps = with_stops(steps, first, rng)
    engine = plain(name)
    return steps, [engine.step(step) for step in steps], engine


def as_one_at_a_time(
    rig: Rig, name: str, seed: str, count: int, look: Callable[[], None] = lambda: None, **how: Any
) -> list[StepResult]:
    """Draw steps, some of which come late; compare what they tell and leave. `look` is called before each comes."""
    steps, want, theirs = drawn(name, f"in flight {name} {seed}", count, **how)
    rng = fresh(f"late {name} {seed}")

    def late() -> bool:
        look()
        return bool(rng.random() < 0.1)

    with device_of(rig.engine):
        got = rig.run(steps, late)
    compare(got, want)
    compare_pools(rig.engine, theirs)
    return got


def replan(rig: Rig) -> list[bool]:
    """Let FlashInfer ask for other launches once, at the next step of most rows; return whether it ran ahead then."""
    (layers,) = rig.decoder.layers[8]
    next(iter(cast("FlashInferStatic", layers.attention)._captured.values()))[0] = 99
    ahead, drop = [], rig.decoder._drop

    def noted(put_off: PutOff, why: PlanChanged) -> None:
        ahead.append(put_off.source is not None)
        drop(put_off, why)

    rig.decoder._drop = noted  # type: ignore[method-assign]
    return ahead


@pytest.mark.skipif(torch.cuda.is_available(), reason="FlashInfer itself may be there")
def test_random_steps_over_flashinfer_with_a_plan_that_changes_give_what_they_give_one_at_a_time() -> None:
    ahead = changed = 0
    for turn in range(TURNS):
        rig, dropped = recorded("qwen2-window", "flashinfer"), list[list[bool]]()

        def look(rig: Rig = rig, dropped: list[list[bool]] = dropped) -> None:
            if len(rig.ahead) >= 3 and not dropped and len(rig.ahead[-1].rows.embed) > 4:
                dropped.append(replan(rig))

        as_one_at_a_time(rig, "qwen2-window", f"flashinfer {turn}", 60, look)
        drops = sum(map(len, dropped))  # none if no step of as many rows came behind
        assert drops == (not rig.decoder.layers[8])
        ahead, changed = ahead + len(rig.ahead), changed + drops
        if ahead > 5 and changed:
            return
    pytest.fail("few steps ran ahead, or no plan changed")


@numerics.INTERPRETED
def test_random_steps_over_triton_give_what_they_give_one_at_a_time() -> None:
    ahead = 0
    for turn in range(TURNS):
        rig = recorded("qwen3-norms", "triton")
        as_one_at_a_time(rig, "qwen3-norms", f"triton {turn}", 24, lanes=2, odd=0.1)
        ahead += len(rig.ahead)
        if ahead > 2:
            return
    pytest.fail("few steps ran ahead")


@pytest.mark.parametrize(("name", "odd", "sampled"), [("llama3-grouped", 0.15, 8), ("qwen2-window", 0.4, 2)])
def test_random_steps_give_what_they_give_one_at_a_time(
    name: str, odd: float, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_module, "sampled_rows", lambda *_: sampled)  # larger batches have no graph for that
    ahead = skipped = 0
    for turn in range(TURNS):
        rig = recorded(name)
        said = as_one_at_a_time(rig, name, f"{odd} {turn}", 100, odd=odd)
        ahead += len(rig.ahead)
        skipped += sum(int((answer.status == Status.SKIPPED).any()) for r in said for answer in r.results)
        if min(ahead, skipped) > 5:
            return
    pytest.fail("few steps ran ahead, or few commands were skipped")


def decoding(count: int, *, first: int = 6, stop: dict[int, int] | None = None, head: bool = False) -> list[Step]:
    """Return a prompt of six tokens for two lanes, and decode steps behind it, as for programs that run ahead.

    Args:
        count: of decode steps.
        first: position of the first one; below 6, later tokens are written anew.
        stop: by step, a token that ends lane 0 in it.
        head: let each step embed its own tokens, rather than the step in front of it.
    """
    stop, lanes, positions = stop or {}, (0, 1), range(6)
    made = changes((0, 0, 0, [4, 9, 2, 11]), (1, 1, 0, [7, 3, 8, 5]))

    def sampled(step: int) -> Any:
        return sample_batch(
            [{"embed": 20 + k, "slot": k, "lane": k, "stop": [stop[step]] if k == 0 and step in stop else [319]}
             for k in lanes]
        )  # fmt: skip

    def embedded(step: int) -> Any:
        return embed_batch([{"embed": [k], "slot": [k], "position": [first + step], "lane": k} for k in lanes])

    prompt = (
        embed_batch([{"embed": [30 + 8 * k + i for i in positions], "token": [5 * k + 7 + i for i in positions],
                      "position": positions, "lane": k} for k in lanes]),
        forward_batch([{"iemb": [30 + 8 * k + i for i in positions], "oemb": [20 + k], "table": k, "lane": k}
                       for k in lanes]),
        sampled(0),
    )  # fmt: skip
    steps = [Step(1, prompt if head else (*prompt, embedded(0)), tables=made)]
    for step in range(count):
        forward = forward_batch(
            [{"iemb": [k], "oemb": [20 + k], "table": k, "okv_offset": first + step, "lane": k} for k in lanes]
        )
        around = (embedded(step),) if head else ()
        after = () if head else (embedded(step + 1),)
        steps.append(Step(2 + step, (*around, forward, sampled(step + 1), *after)))
    return steps


def tokens(results: Sequence[StepResult], lane: int = 0) -> list[int]:
    return [int(result.results[-1 if len(result.results[-1].token) else -2].token[lane]) for result in results]


@pytest.mark.parametrize("head", [False, True])
def test_a_step_is_launched_before_the_one_before_it_is_read(*, head: bool) -> None:
    steps, one = decoding(7, head=head), plain("llama3-grouped")
    want = [one.step(step) for step in steps]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine) as device:
        compare(rig.run(steps), want)
    order = ["launched 1"]
    for k in range(2, 9):
        order += [f"launched {k}", f"waits {k - 1}"]
    assert device.log == [*order, "waits 8"]
    assert len(rig.ahead) == 7


@pytest.mark.parametrize("head", [False, True])
def test_a_row_whose_slot_ended_leaves_no_trace(*, head: bool) -> None:
    """Lane 0 ends while the next step, which would write over the prompt's last tokens, is on the device."""
    one = plain("llama3-grouped")
    said = tokens([one.step(step) for step in decoding(3, first=2, head=head)])
    steps = decoding(3, first=2, stop={1: said[1]}, head=head)
    rig = recorded("llama3-grouped")
    pools, kept = rig.engine.pools, {}
    with device_of(rig.engine):
        for at, step in enumerate(steps):

            def following(_: Any, at: int = at) -> Step | None:
                kept[at] = pools.kv[:, :, [4, 9, 2, 11]].clone(), pools.embeds[[0, 20]].clone()
                return steps[at + 1] if at + 1 < len(steps) else None

            result = rig.engine.step(step, following=following)
            if at == 1:
                assert result.results[1 if not head else 2].ended.tolist() == [1, 0]
                assert len(rig.ahead[-1].rows.embed) == 2, "the ended row was launched"
            if at == 2:
                assert result.results[-1 if head else 1].status.tolist() == [Status.SKIPPED, Status.OK]
    for pages, embeds in (kept[2], (pools.kv[:, :, [4, 9, 2, 11]], pools.embeds[[0, 20]])):
        assert torch.equal(pages, kept[1][0])
        assert torch.equal(embeds, kept[1][1])
    assert rig.decoder.buffers.slot_ended[:2].tolist() == [True, False]
    assert [len(ahead.rows.embed) for ahead in rig.ahead] == [2, 2, 1], "later steps know it"


def many_stops(step: Step, token: int) -> Step:
    """Let lane 0 end with a token that is the ninth of its stop tokens."""
    stop = [*range(300, 308), token]
    batches = [
        dataclasses.replace(batch, stop=i32(stop), stop_indptr=i32([0, 9, 9])) if isinstance(batch, Sample) else batch
        for batch in step.batches
    ]
    return dataclasses.replace(step, batches=tuple(batches))


def dist_behind(step: Step, _: int) -> Step:
    """Read an output behind the sample, which the next step overwrites."""
    return dataclasses.replace(step, batches=(*step.batches, dist_batch([{"embed": [20], "top_k": 5, "lane": 0}])))


def embed_behind(step: Step, _: int) -> Step:
    """Put a token into an embed that no forward takes, and that the next step overwrites."""
    return dataclasses.replace(
        step, batches=(*step.batches, embed_batch([{"embed": [21], "token": [9], "position": [3], "lane": 1}]))
    )


@pytest.mark.parametrize("change", [many_stops, dist_behind, embed_behind])
def test_a_step_waits_for_what_the_device_can_not_know_in_time(change: Callable[[Step, int], Step]) -> None:
    one = plain("llama3-grouped")
    steps = decoding(3, head=True)
    said = tokens([one.step(step) for step in steps])
    steps[1] = change(steps[1], said[1])
    one = plain("llama3-grouped")
    want = [one.step(step) for step in steps]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine):
        compare(rig.run(steps), want)
    compare_pools(rig.engine, one)
    assert [int(ahead.rows.position[0]) for ahead in rig.ahead] == [6, 8], "the step behind the changed one waited"


def test_a_lane_that_breaks_behind_the_sample_is_mended_by_the_next_step() -> None:
    """A program may reset a queue while its commands are under way."""
    steps, one = decoding(3), plain("llama3-grouped")
    tail = embed_batch([{"embed": [k], "slot": [k], "position": [(10_000, 7)[k]], "lane": k} for k in (0, 1)])
    steps[1] = dataclasses.replace(steps[1], batches=(*steps[1].batches[:-1], tail))
    steps[2] = dataclasses.replace(steps[2], reset_lanes=u32([0]))
    want = [one.step(step) for step in steps]
    assert want[1].results[-1].status.tolist() == [Status.FAILED, Status.OK]
    assert want[2].results[0].status.tolist() == [Status.OK, Status.OK]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine):
        compare(rig.run(steps), want)
    compare_pools(rig.engine, one)


def test_a_step_waits_if_two_tokens_went_to_one_slot() -> None:
    """A device writes equal places in any order."""
    steps, one = decoding(3, head=True), plain("llama3-grouped")
    made = [{"embed": embed, "slot": slot, "lane": 1} for embed, slot in ((20, 1), (20, 0), (21, 1))]
    steps[1] = dataclasses.replace(steps[1], batches=(*steps[1].batches[:-1], sample_batch(made)))
    want = [one.step(step) for step in steps]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine):
        compare(rig.run(steps), want)
    assert [int(ahead.rows.position[0]) for ahead in rig.ahead] == [8], "the step itself has no plan, either"


@pytest.mark.parametrize("stops", [False, True])
def test_a_page_that_the_device_still_writes_may_become_a_forks(*, stops: bool) -> None:
    """Lane 0's last page, cleared, continues a fork of lane 0, from a token that may be its last."""
    one = plain("llama3-grouped")
    said = tokens([one.step(step) for step in decoding(2, head=True)])
    steps, one = decoding(2, stop={1: said[1]} if stops else {}, head=True), plain("llama3-grouped")
    both = ((2, 0, 4), (1, 1, 7))  # lane, slot of the token, position
    steps[2] = Step(3, (
        embed_batch([{"embed": [k], "slot": [slot], "position": [at], "lane": k} for k, slot, at in both]),
        forward_batch([{"iemb": [k], "oemb": [20 + k], "table": k, "okv_offset": at, "lane": k} for k, _, at in both]),
        sample_batch([{"embed": 20 + k, "slot": k, "lane": k} for k, _, _ in both]),
    ), tables=changes((0, 0, 1, []), (2, 0, 1, [9])), clear_pages=i32([9]))  # fmt: skip
    want = [one.step(step) for step in steps]
    assert want[2].results[1].status.tolist() == [Status.SKIPPED if stops else Status.OK, Status.OK]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine):
        compare(rig.run(steps), want)
    compare_pools(rig.engine, one)
    assert [ahead.rows.position.tolist() for ahead in rig.ahead] == [[6, 6], [4, 7]]


def test_an_answer_that_fails_is_the_failure_of_its_own_step() -> None:
    steps, rig = decoding(4), recorded("llama3-grouped")
    with device_of(rig.engine) as device:
        device.breaks_at = 3
        assert rig.engine.step(steps[0]).number == 1
        assert rig.engine.step(steps[1], following=lambda _: steps[2]).number == 2
        with pytest.raises(EngineFailure, match="illegal address"):
            rig.engine.step(steps[2], following=lambda _: steps[3])
    assert device.log[-2:] == ["launched 4", "waits 3"]


def test_a_launch_that_fails_is_the_failure_of_the_step_that_was_launched() -> None:
    steps, rig = decoding(3), recorded("llama3-grouped")
    launch = rig.decoder.launch

    def failing(ahead: Ahead) -> Launched | None:
        if ahead.rows.position[0] == 7:
            raise torch.OutOfMemoryError
        return launch(ahead)

    rig.decoder.launch = failing  # type: ignore[method-assign]
    with device_of(rig.engine):
        assert rig.engine.step(steps[0], following=lambda _: steps[1]).number == 1
        assert rig.engine.step(steps[1], following=lambda _: steps[2]).number == 2
        with pytest.raises(OutOfDeviceMemory):
            rig.engine.step(steps[2], following=lambda _: steps[3])


def test_a_step_that_comes_too_late_runs_as_ever() -> None:
    steps, one = decoding(3), plain("llama3-grouped")
    want = [one.step(step) for step in steps]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine) as device:

        def following(over: Callable[[], bool]) -> None:
            assert not over()
            device.arrive(len(device.copies))
            assert over()

        compare([rig.engine.step(step, following=following) for step in steps], want)
    assert not rig.ahead


def test_what_begins_early_may_be_forgotten() -> None:
    steps, one = decoding(3), plain("llama3-grouped")
    want = [one.step(step) for step in steps]
    rig = recorded("llama3-grouped")
    with device_of(rig.engine):
        rig.engine.step(steps[0], following=lambda _: steps[1])
        rig.engine.reset()
        compare(rig.run(steps), want)
