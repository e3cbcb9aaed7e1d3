"""Bias, allowed tokens, penalties and log-probabilities of a program: what it gets, and which arguments are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferlet import Context, Piece, alloc_emb, alloc_slot, embed_txt, errors, forward, reset, sample, synchronize
from tests.sdk.host import mini_model as model
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost


async def pieces_of(n: int, **options: Any) -> list[Piece]:
    async with Context(seed=1) as ctx:
        ctx.fill("Hello")
        return [piece async for piece in ctx.generate(max_tokens=n, eos=False, **options)]


def test_log_probabilities_are_told_best_first_with_the_tokens_bytes() -> None:
    async def main() -> list[Piece]:
        return await pieces_of(6, logprobs=3, logprobs_of=[7])

    for piece in run(MiniHost(), main):
        *best, named = piece.logprobs
        assert best[0] == piece.token  # greedy
        assert piece.logprobs[piece.token] == piece.logprob
        assert [piece.logprobs[t] for t in best] == sorted((piece.logprobs[t] for t in best), reverse=True)
        assert named == 7
        assert all(piece.token_bytes[token] == bytes([token]) for token in piece.logprobs)


def test_bias_and_allowed_tokens_decide_what_may_come() -> None:
    async def main() -> tuple[set[int], set[int], set[int]]:
        listed = await pieces_of(12, allowed=[65, 66, 67], logit_bias={66: -100})
        masked = await pieces_of(12, allowed=[t for t in range(260) if t % 2])
        packed = await pieces_of(12, allowed=bytes([0x55] * 33))
        return tuple({p.token for p in pieces} for pieces in (listed, masked, packed))  # type: ignore[return-value]

    listed, masked, packed = run(MiniHost(), main)
    assert listed <= {65, 67}
    assert all(token % 2 for token in masked)
    assert not any(token % 2 for token in packed)


def test_penalties_count_the_generated_text_alone_at_every_depth_of_run_ahead() -> None:
    async def main() -> list[list[int]]:
        runs = []
        for depth in (0, 4):
            async with Context(seed=1, run_ahead=depth) as ctx:
                ctx.fill("Hello")
                first = ctx.generate(max_tokens=8, eos=False, presence_penalty=100.0, allowed=range(64, 80))
                async for _ in first:
                    pass
                second = ctx.generate(max_tokens=8, eos=False, presence_penalty=100.0, allowed=range(64, 80))
                async for _ in second:
                    pass
                runs += [first.tokens, second.tokens]
        return runs

    tokens = run(MiniHost(), main)
    assert tokens[:2] == tokens[2:]
    assert all(len(set(one)) == 8 for one in tokens)  # no token twice: each counts as soon as it was sampled


def test_a_function_that_samples_takes_no_options() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill("Hello")
            with pytest.raises(errors.InvalidArgument):
                ctx.generate(sampler=lambda dist: dist.max_index(), logprobs=1)

    run(MiniHost(), main)


JUNK = st.one_of(
    st.none(), st.text(max_size=3), st.integers(-5, 2**33), st.floats(), st.binary(max_size=40),
    st.lists(st.one_of(st.integers(-2, 2**33), st.floats(), st.none()), max_size=4),
    st.dictionaries(st.integers(-2, 300), st.one_of(st.floats(), st.none(), st.text(max_size=2)), max_size=3),
    st.tuples(st.lists(st.integers(-1, 300), max_size=3), st.lists(st.integers(-1, 300), max_size=3)),
)  # fmt: skip
NAMES = (
    "logit_bias",
    "allowed",
    "logprobs",
    "logprobs_of",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "history",
)


@settings(max_examples=150, deadline=None)
@given(options=st.dictionaries(st.sampled_from(NAMES), JUNK, min_size=1, max_size=3))
def test_any_arguments_end_in_a_token_or_a_typed_error_and_nothing_leaks(options: dict[str, Any]) -> None:
    async def main() -> None:
        (embed,), (slot,) = alloc_emb(1), alloc_slot(1)
        embed_txt(72, 0, embed)
        forward([], [embed], oemb=[embed])
        try:
            sampled = await sample(embed, slot, **options)
        except errors.InvalidArgument as e:
            assert e.fields["argument"]  # noqa: PT017
            reset()
        else:
            assert 0 <= sampled.token < model.VOCAB
        assert 0 <= (await sample(embed, slot)).token < model.VOCAB  # the queue goes on
        await synchronize()

    host = MiniHost()
    run(host, main)
