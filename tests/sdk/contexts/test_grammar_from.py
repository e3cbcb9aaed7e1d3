"""`grammar_from`: a grammar's text that a context has a part of, as a fork within the text does."""

from __future__ import annotations

import pytest

from inferlet import Context, Temperature, json_schema, regex
from inferlet.errors import GrammarRefused, InvalidArgument
from tests.sdk.host.harness import held, run
from tests.sdk.host.mini_host import MiniHost

RECORD = json_schema(
    {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "count": {"enum": [1, 22, 333]}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("run_ahead", [0, 4])
@pytest.mark.parametrize("skip_forced", [False, True])
@pytest.mark.parametrize("length", [1, 9, 20])
def test_a_fork_within_a_text_goes_on_with_it(run_ahead: int, length: int, *, skip_forced: bool) -> None:
    async def main() -> list[str]:
        async with Context(seed=3, run_ahead=run_ahead) as ctx:
            ctx.fill("A record: ")
            await ctx.flush()
            start = len(ctx.tokens)
            begun = await ctx.generate_until(grammar=RECORD, max_tokens=length, skip_forced=skip_forced)
            [fork] = ctx.fork(1)
            async with fork:
                there = fork.generate(
                    grammar=RECORD, grammar_from=start, sampler=Temperature(2.0), skip_forced=skip_forced
                )
                rest = "".join([piece async for piece in there])
                assert there.stopped_by == "grammar"
        return [begun, rest]

    host = MiniHost()
    begun, rest = run(host, main)
    texts = {f'{{"colour": "{colour}", "count": {count}}}' for colour in ("red", "green") for count in (1, 22, 333)}
    assert begun + rest in texts
    assert held(host) == (0, 0, 0)


def test_a_text_that_the_program_has_begun_is_gone_on_with() -> None:
    async def main() -> str:
        async with Context(seed=3) as ctx:
            ctx.fill("A record: ")
            await ctx.flush()
            start = len(ctx.tokens)
            ctx.fill('{"colour": "g', special=False)
            return await ctx.generate_until(grammar=RECORD, grammar_from=start)

    assert run(MiniHost(), main).startswith('reen", "count": ')


def test_without_it_the_text_begins_with_the_first_new_token() -> None:
    async def main() -> str:
        async with Context(seed=3) as ctx:
            ctx.fill("ab")
            return await ctx.generate_until(grammar=regex("abc"))

    assert run(MiniHost(), main) == "abc"


def test_tokens_that_begin_no_text_of_the_grammar_are_refused() -> None:
    async def main() -> None:
        async with Context(seed=3) as ctx:
            ctx.fill("xy")
            await ctx.flush()
            with pytest.raises(GrammarRefused):
                await ctx.generate_until(grammar=regex("abc"), grammar_from=len(ctx.tokens) - 1)

    run(MiniHost(), main)


@pytest.mark.parametrize("place", [-1, 1 << 20])
def test_a_place_outside_the_context_is_refused(place: int) -> None:
    async def main() -> None:
        async with Context(seed=3) as ctx:
            ctx.fill("ab")
            with pytest.raises(InvalidArgument) as caught:
                await ctx.generate_until(grammar=regex("abc"), grammar_from=place)
            assert caught.value.fields["argument"] == "grammar_from"

    host = MiniHost()
    run(host, main)
    assert held(host) == (0, 0, 0)
