"""Tokens that a grammar forces take no step of their own, and the text is what steps give."""

from __future__ import annotations

from inspect import isfunction
from typing import Any, get_type_hints

import pytest

import inferlet.grammar
from inferlet import Context, Grammar, Greedy, StopTokens, Temperature, Until, json_schema, regex
from inferlet.errors import InvalidArgument
from inferlet.sampling import AnySampler
from tartlet_common.abi import Op
from tests.e2e.generated_grammars import Made, expressions, schemas
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost

RECORD = json_schema(
    {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "in_stock": {"type": "boolean"}},
        "required": ["colour", "in_stock"],
        "additionalProperties": False,
    }
)


async def generated(grammar: Grammar, run_ahead: int, skip: bool, stop: Any = None, **more: Any) -> dict[str, Any]:
    """Generate, then go on freely with the context; tell all that a program sees."""
    async with Context(seed=5, run_ahead=run_ahead) as ctx:
        ctx.fill("A record: ")
        written = ctx.generate(stop, grammar=grammar, skip_forced=skip, **{"max_tokens": 80, **more})
        pieces = [str(piece) async for piece in written]
        ctx.fill(" and")
        after = await ctx.generate_until(max_tokens=3)
        told = {"text": written.text, "tokens": written.tokens, "why": written.stopped_by, "after": after}
        return {"told": told, "pieces": pieces, "forced": written.num_forced}


def both(grammar: Grammar, run_ahead: int, **more: Any) -> tuple[dict[str, Any], int, int]:
    """Generate step by step and with forced tokens skipped; return what was skipped, and the samples of each."""
    sides = []
    for skip in (False, True):
        host = MiniHost(page_size=3)
        told = run(host, lambda skip=skip: generated(grammar, run_ahead, skip, **more))  # type: ignore[misc]
        assert held(host) == (0, 0, 0)
        sides.append((told, host.ops.count(Op.SAMPLE)))
    (steps, num_steps), (skipped, num_skipped) = sides
    assert skipped["told"] == steps["told"]
    assert skipped["pieces"] == steps["pieces"]
    assert steps["forced"] == 0
    return skipped, num_steps, num_skipped


@pytest.mark.parametrize("run_ahead", [0, 1, 4])
@pytest.mark.parametrize("sampler", [Greedy(), Temperature(0.9)], ids=["greedy", "sampled"])
def test_texts_of_generated_grammars_are_the_same_in_fewer_steps(run_ahead: int, sampler: AnySampler) -> None:
    def told(made: Made) -> tuple[int, int]:
        skipped, num_steps, num_skipped = both(Grammar(int(made.kind), made.text), run_ahead, sampler=sampler)
        assert num_skipped <= num_steps
        if not run_ahead:
            assert num_steps - num_skipped == skipped["forced"]
        return skipped["forced"], num_steps

    forced, steps = map(sum, zip(*map(told, [*schemas(8, run_ahead), *expressions(4, run_ahead)]), strict=True))
    assert forced * 10 > steps, "a tenth of the tokens, or more"


def test_every_forced_token_of_a_record_takes_no_step() -> None:
    skipped, _, samples = both(RECORD, 0)
    text = skipped["told"]["text"]
    assert skipped["told"]["why"] == "grammar"
    # The first token, what stands behind the keys, and the last token, which ends the text: all else is forced.
    assert samples - 3 == len(skipped["told"]["tokens"]) - skipped["forced"] <= 5, text


@pytest.mark.parametrize("run_ahead", [0, 4])
@pytest.mark.parametrize("length", [1, 2, 9, 15])
def test_a_length_within_forced_tokens_holds(run_ahead: int, length: int) -> None:
    skipped, _, _ = both(RECORD, run_ahead, max_tokens=length)
    assert len(skipped["told"]["tokens"]) == length
    assert skipped["told"]["why"] == "length"


@pytest.mark.parametrize("run_ahead", [0, 4])
def test_stops_within_forced_tokens_hold(run_ahead: int) -> None:
    until, _, _ = both(RECORD, run_ahead, stop=Until("lou"))
    assert (until["told"]["text"], until["told"]["why"]) == ('{"co', "until")
    token, _, _ = both(RECORD, run_ahead, stop=StopTokens([tokens_of("u", special=False)[0]]))
    assert (token["told"]["text"], token["told"]["why"]) == ('{"colo', "token")


@pytest.mark.parametrize("run_ahead", [0, 4])
def test_a_context_that_is_left_within_forced_tokens_goes_on(run_ahead: int) -> None:
    async def left(skip: bool) -> tuple[list[int], str]:
        async with Context(seed=5, run_ahead=run_ahead) as ctx:
            ctx.fill("A record: ")
            async for _ in ctx.generate(grammar=RECORD, skip_forced=skip):
                if ctx.tokens[-1] == tokens_of("o", special=False)[0]:
                    break
            return list(ctx.tokens), await ctx.generate_until(max_tokens=4)

    assert run(MiniHost(page_size=3), lambda: left(True)) == run(MiniHost(page_size=3), lambda: left(False))


@pytest.mark.parametrize(
    "options", [{"logprobs": 2}, {"presence_penalty": 0.5}, {"logit_bias": {7: 1.0}}, {"allowed": list(range(256))}]
)
def test_with_other_options_each_token_takes_its_step(options: dict[str, Any]) -> None:
    skipped, num_steps, num_skipped = both(regex("abcdef"), 0, **options)
    assert (skipped["forced"], num_skipped) == (0, num_steps)


def test_a_wrong_option_is_refused_as_ever() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill("A")
            with pytest.raises(InvalidArgument):
                ctx.generate(grammar=RECORD, skip_forced=True, presence_penalty="much")  # type: ignore[arg-type]

    run(MiniHost(), main)


def test_the_refusal_of_what_is_no_grammar_names_each_function_that_gives_one() -> None:
    hints = {name: get_type_hints(made) for name, made in vars(inferlet.grammar).items() if isfunction(made)}
    forms = {name for name, types in hints.items() if types.get("return") is Grammar}
    assert {"json_schema", "regex"} < forms

    async def main() -> InvalidArgument:
        async with Context() as ctx:
            ctx.fill("A")
            with pytest.raises(InvalidArgument) as refused:
                ctx.generate(grammar="[0-9]+")  # type: ignore[arg-type]
            return refused.value

    error = run(MiniHost(), main)
    assert error.fields["argument"] == "grammar"
    assert {form for form in forms if form in error.fields["detail"]} == forms
