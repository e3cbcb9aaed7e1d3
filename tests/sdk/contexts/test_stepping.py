"""Single steps, drafts and scores of a `Context`, against the plain reference of `mini_model`."""

from __future__ import annotations

import asyncio
import math

import pytest

from inferlet import Context, Dist, End, Temperature, TopK, Until, errors
from tartlet_common.abi import Op
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import logprob, probabilities, reference_generate, reference_states

PROMPT = "Hello, world"
PREFIX = list(tokens_of(PROMPT))
GREEDY = reference_generate(PREFIX, 24)


def next_probs(tokens: list[int]) -> list[float]:
    """The reference's distribution of the token that follows."""
    return list(probabilities(reference_states(tokens)[-1], len(tokens) - 1, {}))


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_distribution_leaves_the_context_as_it_is_and_is_computed_once(page_size: int) -> None:
    host = MiniHost(page_size=page_size)

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            first, again = await ctx.next_dist(top_k=3), await ctx.next_dist()
            assert host.computed_tokens == len(PREFIX)
            assert first.tokens[0] == again.tokens[0] == GREEDY[0]
            assert first.probs[0] == pytest.approx(max(next_probs(PREFIX)), rel=1e-6)
            await ctx.generate_until(max_tokens=4)
            assert ctx.tokens == PREFIX + GREEDY[:4]

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_named_tokens_have_their_own_log_probabilities() -> None:
    async def main() -> dict[int, float]:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            return await ctx.next_logprobs([7, GREEDY[0], 259])

    told = run(MiniHost(), main)
    assert set(told) == {7, GREEDY[0], 259}
    probs = probabilities(reference_states(PREFIX)[-1], len(PREFIX) - 1, {})
    for token, value in told.items():
        assert value == pytest.approx(logprob(probs, token), rel=1e-5)


@pytest.mark.parametrize("sampler", [None, Temperature(0.9) | TopK(40)], ids=["greedy", "sampled"])
def test_steps_and_drafts_give_what_generate_gives(sampler: Temperature | None) -> None:
    """Whatever the drafts are: right, wrong or half right."""

    async def main() -> None:
        async with Context(seed=9) as plain, Context(seed=9) as steps, Context(seed=9) as drafted:
            for ctx in (plain, steps, drafted):
                ctx.fill(PROMPT)
            await plain.generate_until(max_tokens=20, sampler=sampler)
            while len(steps) < len(plain):
                await steps.step(sampler)
            assert steps.tokens == plain.tokens
            await drafted.flush()
            quality = 0
            while len(drafted) < len(plain):
                at, quality = len(drafted), quality + 1
                good = plain.tokens[at : at + quality % 4]
                proposal = await drafted.propose([*good, 3][: len(plain) - at - 1], sampler)
                assert proposal.agreed == min(len(good), len(plain) - at - 1)
                drafted.accept(proposal)
            assert drafted.tokens == plain.tokens

    host = MiniHost(page_size=3, per_wait=5)
    run(host, main)
    assert held(host) == (0, 0, 0)


def test_one_pass_verifies_all_drafts_and_their_keys_stay() -> None:
    host = MiniHost(page_size=4)

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            await ctx.flush()
            passes, computed = host.ops.count(Op.FORWARD_TABLE), host.computed_tokens
            taken = ctx.accept(await ctx.propose(GREEDY[:7]))
            assert taken == GREEDY[:8]
            assert host.ops.count(Op.FORWARD_TABLE) == passes + 1
            await ctx.generate_until(max_tokens=1)
            assert host.computed_tokens == computed + 8 + 1, "the accepted drafts aren't computed again"
            assert ctx.tokens == PREFIX + GREEDY[:9]

    run(host, main)


def test_any_drafts_can_be_accepted_and_distributions_come_with_them() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            proposal = await ctx.propose([7, 8, 9], top_k=5)
            assert [dist.max_index() for dist in proposal.dists] == [choice.token for choice in proposal.choices]
            assert ctx.accept(proposal, 2) == [7, 8]
            await ctx.generate_until(max_tokens=5)
            assert ctx.tokens == [*PREFIX, 7, 8, *reference_generate([*PREFIX, 7, 8], 5)]
            with pytest.raises(errors.InvalidArgument, match="context was changed since"):
                ctx.accept(proposal)

    run(MiniHost(page_size=2), main)


def test_a_stop_token_among_the_drafts_ends_what_is_accepted() -> None:
    script = {len(PREFIX) + 1: 257}  # the third token

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            proposal = await ctx.propose([*GREEDY[:2], 257, 5])
            assert (proposal.agreed, proposal.choices[2].ended) == (3, True)
            assert ctx.accept(proposal) == [*GREEDY[:2], 257]

    run(MiniHost(script=script), main)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("back", [0, 1, 5, 9, 24])
def test_a_rollback_leads_to_the_same_tokens_again(page_size: int, back: int) -> None:
    host = MiniHost(page_size=page_size)

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            await ctx.generate_until(max_tokens=12)
            [fork] = ctx.fork()  # shares rows that must not be written again
            whole = list(ctx.tokens)
            ctx.rollback(back)
            assert ctx.tokens == whole[: len(whole) - back]
            assert ctx.num_pages <= -(-len(ctx) // page_size)
            await ctx.generate_until(max_tokens=14)
            assert ctx.tokens == whole[: len(whole) - back] + reference_generate(whole[: len(whole) - back], 14)
            await fork.generate_until(max_tokens=3)
            assert fork.tokens == PREFIX + GREEDY[:15]
            with pytest.raises(ValueError, match="rollback is 1000"):
                ctx.rollback(1000)

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_input_that_waits_is_rolled_back_too() -> None:
    async def main() -> list[int]:
        ctx = Context()
        ctx.fill(PROMPT)
        ctx.rollback(3)
        await ctx.generate_until(max_tokens=4)
        return ctx.tokens

    assert run(MiniHost(), main) == PREFIX[:-3] + reference_generate(PREFIX[:-3], 4)


@pytest.mark.parametrize("length", [1, 4, 300])
def test_a_score_is_the_log_probability_of_every_token(length: int) -> None:
    host, text = MiniHost(page_size=16), ("What a day. " * 30)[:length]

    async def main() -> list[float]:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            told = await ctx.score(text)
            pages = ctx.num_pages
            await ctx.generate_until(max_tokens=3)
            assert ctx.tokens == PREFIX + GREEDY[:3], "the context stays as it is"
            assert pages == 1, "the rows of the text are given back"
            assert await ctx.score([]) == []
            return told

    told = run(host, main)
    tokens = [*PREFIX, *text.encode()]
    states = reference_states(tokens)
    for i in range(length):
        at = len(PREFIX) + i - 1
        expected = math.log(probabilities(states[at], at, {})[tokens[at + 1]])
        assert told[i] == pytest.approx(expected, rel=1e-5)


def test_the_last_position_ends_generation_and_refuses_steps() -> None:
    class Short(MiniHost):
        def model_info(self) -> dict[str, object]:
            return super().model_info() | {"max_position": len(PREFIX) + 3}

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            await ctx.flush()
            assert ctx.room == 3
            with pytest.raises(errors.ContextTooLong):
                await ctx.propose(GREEDY[:4])
            proposal = await ctx.propose(GREEDY[:3])
            assert len(proposal.choices) == 3, "nothing may follow the last position"
            assert ctx.accept(proposal) == GREEDY[:3]
            assert ctx.room == 0
            assert (await ctx.next_dist()).max_index() == GREEDY[3]
            for refused in (ctx.step(), ctx.propose([]), ctx.score("x")):
                with pytest.raises(errors.ContextTooLong):
                    await refused
            generation = ctx.generate()
            assert [piece async for piece in generation] == []
            assert generation.stopped_by == "length"
            ctx.fill("more than fits")
            with pytest.raises(errors.ContextTooLong):
                await ctx.next_dist()
            ctx.rollback(len("more than fits") + 2)
            assert (await ctx.step()).token == GREEDY[1], "a rollback makes room again"

    run(Short(), main)


def test_a_sampler_of_the_program_ends_its_generation() -> None:
    async def main(last: int | None) -> tuple[str, str | None]:
        left = iter([*GREEDY[:5]])

        def sampler(_: Dist) -> int | End:
            token = next(left, None)
            return End(last) if token is None else token

        async with Context() as ctx:
            ctx.fill(PROMPT)
            generation = ctx.generate(Until(bytes(GREEDY[4:6]).decode()), sampler=sampler)
            pieces = [piece async for piece in generation]
            assert "".join(pieces) == generation.text
            return generation.text, generation.stopped_by

    text = bytes(GREEDY).decode()
    assert run(MiniHost(), lambda: main(None)) == (text[:5], "sampler"), "with the text that was held back"
    assert run(MiniHost(), lambda: main(ord("!"))) == (text[:5] + "!", "sampler")


def test_two_tasks_cannot_compute_with_one_context() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill(PROMPT)
            first = asyncio.ensure_future(ctx.step())
            await asyncio.sleep(0)
            for second in (ctx.step, ctx.next_dist, lambda: ctx.propose([1])):
                with pytest.raises(errors.InvalidArgument, match="it generates already"):
                    await second()
            with pytest.raises(errors.InvalidArgument, match="it generates already"):
                ctx.rollback(1)
            assert (await first).token == GREEDY[0]
            generation = asyncio.ensure_future(ctx.generate_until(max_tokens=3))
            await asyncio.sleep(0)
            with pytest.raises(errors.InvalidArgument, match="it generates already"):
                await ctx.step()
            await generation
            assert ctx.tokens == PREFIX + GREEDY[:4]

    run(MiniHost(per_wait=1), main)
