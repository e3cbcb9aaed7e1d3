"""`Context` against the plain reference of `mini_model`: the same tokens, however pages, queues and run-ahead lie."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

import inferlet
from inferlet import (
    Context,
    Dist,
    MinP,
    Priority,
    Sampler,
    Temperature,
    TopK,
    TopP,
    errors,
    get_model,
)
from tartlet_common.abi import Op
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import reference_generate

PROMPT = "Hello, world"
PREFIX = len(tokens_of(PROMPT))


@pytest.mark.parametrize("page_size", [1, 2, 4, 13, 16, 32])
@pytest.mark.parametrize("run_ahead", [0, 1, 4])
@pytest.mark.parametrize("per_wait", [1, 7, 1000])
def test_greedy_text_is_the_reference_for_every_layout(page_size: int, run_ahead: int, per_wait: int) -> None:
    host = MiniHost(page_size=page_size, per_wait=per_wait)

    async def main() -> list[int]:
        async with Context(await get_model(), run_ahead=run_ahead) as ctx:
            ctx.fill(PROMPT)
            await ctx.generate_until(max_tokens=20)
            return ctx.tokens

    assert run(host, main) == [*tokens_of(PROMPT), *reference_generate(tokens_of(PROMPT), 20)]
    assert held(host) == (0, 0, 0)
    assert (
        host.computed_tokens == PREFIX + 19
    )  # a limit known beforehand costs nothing, and the last token isn't needed


@pytest.mark.parametrize(
    "sampler",
    [Temperature(0.8), TopK(5), TopP(0.5), MinP(0.05), Temperature(1.3) | TopK(30) | TopP(0.9)],
    ids=repr,
)
def test_the_same_seed_gives_the_same_text_with_and_without_run_ahead(sampler: Sampler) -> None:
    def generate(run_ahead: int, seed: int) -> list[int]:
        async def main() -> list[int]:
            ctx = Context(seed=seed, run_ahead=run_ahead)
            ctx.fill(PROMPT)
            await ctx.generate_until(max_tokens=24, sampler=sampler)
            return ctx.tokens[PREFIX:]

        return run(MiniHost(per_wait=4), main)

    s = sampler
    filters = (s.resolved_temperature, s.top_k or 0, s.top_p or 1.0, s.min_p or 0.0)
    rounded = np.array(filters, "<f4").tolist()  # as they travel
    params = (rounded[0], int(filters[1]), rounded[2], rounded[3], 5, 0)
    assert generate(0, 5) == generate(4, 5) == reference_generate(tokens_of(PROMPT), 24, params)
    assert generate(0, 5) != generate(0, 6)


def test_leaving_the_loop_early_keeps_the_tokens_that_were_seen() -> None:
    host = MiniHost(per_wait=2)

    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        async for _ in ctx.generate(max_tokens=50):
            if len(ctx.tokens) == PREFIX + 5:
                break
        ctx.fill("; ")
        await ctx.generate_until(max_tokens=4)
        return ctx.tokens

    first = reference_generate(tokens_of(PROMPT), 5)
    prompt = [*tokens_of(PROMPT), *first, *b"; "]
    assert run(host, main) == [*prompt, *reference_generate(prompt, 4)]


def test_generating_twice_goes_on() -> None:
    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        await ctx.generate_until(max_tokens=5)
        await ctx.generate_until(max_tokens=5)
        return ctx.tokens[PREFIX:]

    assert run(MiniHost(), main) == reference_generate(tokens_of(PROMPT), 10)


def test_a_cancelled_task_leaves_a_context_that_can_go_on() -> None:
    host = MiniHost(per_wait=1)

    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        task = asyncio.create_task(ctx.generate_until(max_tokens=1000))
        while len(ctx.tokens) < PREFIX + 7:  # noqa: ASYNC110 - the state to catch it in is inside
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ctx.tokens) == PREFIX + 7
        await ctx.generate_until(max_tokens=3)
        return ctx.tokens[PREFIX:]

    assert run(host, main) == reference_generate(tokens_of(PROMPT), 10)


@pytest.mark.parametrize("per_wait", range(1, 30))
def test_a_task_cancelled_around_its_first_token_leaves_nothing_behind(per_wait: int) -> None:
    """Wherever it is cut: before the prompt is computed, and while steps have run whose tokens nobody has seen."""

    async def main(turns: int) -> int:
        ctx = Context()
        ctx.fill(PROMPT)
        task = asyncio.create_task(ctx.generate_until(max_tokens=30))
        for _ in range(turns):
            await inferlet.synchronize()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen = max(len(ctx.tokens) - PREFIX, 0)
        await ctx.generate_until(max_tokens=5)
        assert ctx.tokens[PREFIX:] == reference_generate(tokens_of(PROMPT), seen + 5)
        return seen

    seen = [run(MiniHost(per_wait=per_wait), partial(main, turns)) for turns in range(14)]
    assert 0 in seen


def test_a_custom_sampler_chooses_from_the_distribution() -> None:
    def second_best(dist: Dist) -> int:
        return dist.tokens[1]

    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        await ctx.generate_until(max_tokens=8, sampler=second_best)
        return ctx.tokens[PREFIX:]

    def best(dist: Dist) -> int:
        return dist.max_index()

    async def greedy() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        await ctx.generate_until(max_tokens=8, sampler=best)
        return ctx.tokens[PREFIX:]

    reference = reference_generate(tokens_of(PROMPT), 8)
    assert run(MiniHost(), greedy) == reference
    assert run(MiniHost(), main)[0] != reference[0]


def test_a_large_vocabulary_comes_in_blocks_and_only_as_far_as_the_tokenizer_goes() -> None:
    class Large(MiniHost):
        def model_info(self) -> dict[str, Any]:
            return super().model_info() | {"vocab_size": 6000}  # padded

        def vocab(self) -> list[bytes]:
            return [b"<%d>" % i for i in range(3000)]

    async def main() -> str:
        ctx = Context()
        ctx.fill_tokens([1, 2, 3])
        return await ctx.generate_until(max_tokens=6, sampler=lambda _: next(tokens))

    tokens, host = iter([5, 700, 2900, 2500, 5999, 4000]), Large()
    assert run(host, main) == "<5><700><2900><2500>"
    assert host.ops.count(Op.GET_VOCABS) == 2, "the first beside the prompt; the other was short"


def test_an_exception_of_a_custom_sampler_reaches_its_caller() -> None:
    def broken(_: Dist) -> int:
        raise LookupError("no")

    async def main() -> None:
        ctx = Context()
        ctx.fill(PROMPT)
        with pytest.raises(LookupError):
            await ctx.generate_until(max_tokens=8, sampler=broken)
        await ctx.generate_until(max_tokens=1)

    run(MiniHost(), main)


@pytest.mark.parametrize("chosen", ["x", 1.5, None, -1, 100_000])
def test_what_a_custom_sampler_chooses_is_a_token(chosen: Any) -> None:
    async def main() -> None:
        ctx = Context()
        ctx.fill(PROMPT)
        with pytest.raises(errors.InvalidArgument, match=f"sampler: it chose {chosen!r}, which is no token id below"):
            await ctx.generate_until(max_tokens=8, sampler=lambda _: chosen)
        await ctx.generate_until(max_tokens=1)

    run(MiniHost(), main)


def test_a_custom_sampler_is_a_plain_function() -> None:
    async def awaits(dist: Dist) -> int:
        return dist.tokens[0]

    async def main() -> None:
        ctx = Context()
        ctx.fill(PROMPT)
        for sampler, said in (
            (awaits, "sampler: it is an async function, but is called between two tokens: make it a plain one"),
            (Temperature, "sampler: Temperature is neither a Sampler, as Temperature"),
            ("greedy", "sampler: 'greedy' is neither a Sampler"),
        ):
            with pytest.raises(errors.InvalidArgument, match=re.escape(said)):
                await ctx.generate_until(max_tokens=8, sampler=cast("Any", sampler))
        await ctx.generate_until(max_tokens=1)

    run(MiniHost(), main)


def test_contexts_of_one_program_decode_side_by_side() -> None:
    host = MiniHost()

    async def main() -> None:
        contexts = [Context() for _ in range(8)]
        for i, ctx in enumerate(contexts):
            ctx.fill(f"prompt {i}")
        await asyncio.gather(*(ctx.generate_until(max_tokens=20) for ctx in contexts))

    run(host, main)
    assert host.waits <= 26


def test_a_failed_allocation_raises_where_it_is_awaited_and_spares_others() -> None:
    host = MiniHost(page_size=1, page_limit=PREFIX + 8, per_wait=3)

    async def main() -> str:
        greedy = Context()
        greedy.fill(PROMPT)
        with pytest.raises(errors.PageQuotaExceeded, match="its limit is"):
            await greedy.generate_until(max_tokens=50)
        greedy.close()
        ctx = Context()
        ctx.fill("hi")
        return await ctx.generate_until(max_tokens=4)

    assert run(host, main).encode() == bytes(reference_generate(tokens_of("hi"), 4))
    assert held(host) == (0, 0, 0)


def test_a_closed_context_s_queue_is_used_again_at_normal_priority() -> None:
    host = MiniHost()

    async def main() -> list[int]:
        first = Context()
        first.set_priority(Priority.HIGH)
        first.close()
        return [first.queue.id, Context().queue.id]

    queues = run(host, main)
    assert queues[0] == queues[1]
    assert host.priorities == [2, 1]


def test_chat_uses_the_models_format() -> None:
    host = MiniHost()

    async def main() -> None:
        ctx = Context()
        ctx.chat([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
        await ctx.generate_until(max_tokens=1)

    run(host, main)
    assert host.tokenized == [("<system>s</system><user>u</user><assistant>", False)]


def test_only_the_first_text_gets_the_tokenizers_special_tokens() -> None:
    host = MiniHost()

    async def main() -> None:
        ctx = Context()
        ctx.fill("a")
        ctx.fill("b")
        await ctx.generate_until(max_tokens=1)
        ctx.fill("c")
        await ctx.flush()

    run(host, main)
    assert host.tokenized == [("a", True), ("b", False), ("c", False)]


def test_an_empty_context_says_what_is_missing() -> None:
    async def main() -> None:
        with pytest.raises(errors.InvalidArgument, match="fill in a prompt"):
            await Context().generate_until(max_tokens=1)

    run(MiniHost(), main)


def test_a_context_of_a_model_s_name_says_what_gives_a_model() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="get_model"):
            Context("model")  # type: ignore[arg-type]

    run(MiniHost(), main)


def test_a_closed_context_cannot_be_used() -> None:
    async def main() -> None:
        ctx = Context()
        ctx.close()
        ctx.close()
        with pytest.raises(errors.InvalidArgument, match="closed"):
            ctx.fill("x")

    run(MiniHost(), main)


def test_a_long_prompt_is_computed_in_chunks_with_few_embeds() -> None:
    host = MiniHost(page_size=16)
    text = "x" * 1300

    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(text)
        await ctx.generate_until(max_tokens=2)
        return ctx.tokens[-2:]

    assert run(host, main) == reference_generate(tokens_of(text), 2)
    assert host.ops.count(Op.FORWARD_TABLE) == 3 + 1


def test_generating_nothing_is_fine() -> None:
    async def main() -> str:
        ctx = Context()
        ctx.fill(PROMPT)
        return await ctx.generate_until(max_tokens=0)

    assert run(MiniHost(), main) == ""


def test_the_paper_s_three_lines() -> None:
    async def main() -> str:
        model = await get_model()
        ctx = Context(model)
        ctx.fill("Hello,")
        return await ctx.generate_until(max_tokens=10)

    assert run(MiniHost(page_size=1), main).encode() == bytes(reference_generate(tokens_of("Hello,"), 10))
