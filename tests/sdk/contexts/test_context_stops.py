"""Where a generation stops, and how its tokens become text."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

import inferlet
from inferlet import Context, Generation, Length, StopTokens, Until
from inferlet.stopping import Scanner
from tartlet_common.abi import Op
from tests.sdk.host.harness import run, run_source, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import EOS, reference_generate

PROMPT = "Hello, world"
PREFIX = len(tokens_of(PROMPT))


def script(text: bytes | list[int], *, after: int = PREFIX) -> dict[int, int]:
    """Make the model say `text` behind `after` tokens."""
    return {after - 1 + i: token for i, token in enumerate(text)}


@pytest.mark.parametrize("run_ahead", [0, 4])
def test_a_stop_string_ends_the_text_and_the_context_goes_on_from_there(run_ahead: int) -> None:
    said = b"one two END of"
    host = MiniHost(per_wait=5, script=script(said))

    async def main() -> tuple[str, str, list[int]]:
        ctx = Context(run_ahead=run_ahead)
        ctx.fill(PROMPT)
        first = await ctx.generate_until("END", max_tokens=40)
        ctx.fill(" next")
        second = await ctx.generate_until(max_tokens=6)
        return first, second, ctx.tokens

    first, second, tokens = run(host, main)
    assert first == "one two "
    assert (Op.CANCEL in host.ops) == (run_ahead > 0), "what was queued ahead is dropped"
    prompt = [*tokens_of(PROMPT), *b"one two END", *b" next"]
    assert tokens == [*prompt, *reference_generate(prompt, 6, script=host.script)]
    assert second.encode() == bytes(tokens[-6:])


@pytest.mark.parametrize(
    ("stops", "text", "found"),
    [
        (("of", "END"), "one two ", "END"),
        (("END of", "END"), "one two ", "END"),  # of two that begin at one place, the one that is complete first
        (("never",), "one two END of", None),
    ],
)
def test_a_generation_says_which_stop_string_it_found(stops: tuple[str, ...], text: str, found: str | None) -> None:
    said = b"one two END of"

    async def main() -> tuple[str, str | None]:
        ctx = Context()
        ctx.fill(PROMPT)
        generation = ctx.generate(Until(*stops), max_tokens=len(said))
        assert "".join([piece async for piece in generation]) == generation.text
        return generation.text, generation.stop_text

    assert run(MiniHost(script=script(said)), main) == (text, found)
    scanner = Scanner(stops)
    assert (scanner.feed(said.decode()) + scanner.rest(), scanner.found) == (text, found)


@pytest.mark.parametrize("run_ahead", [0, 4])
def test_a_stop_token_ends_on_the_device_and_the_context_goes_on_from_there(run_ahead: int) -> None:
    host = MiniHost(script=script([*b"abc", EOS]))

    async def main() -> tuple[Generation, list[int], list[int]]:
        ctx = Context(run_ahead=run_ahead)
        ctx.fill(PROMPT)
        generation = ctx.generate(max_tokens=40)
        pieces = [piece async for piece in generation]
        assert "".join(pieces) == "abc"
        before = ctx.tokens.copy()
        ctx.fill("!")
        await ctx.generate_until(max_tokens=3)
        return generation, before, ctx.tokens

    generation, before, tokens = run(host, main)
    assert generation.stopped_by == "token"
    assert before == [*tokens_of(PROMPT), *b"abc", EOS]
    prompt = [*before, *b"!"]
    assert tokens == [*prompt, *reference_generate(prompt, 3)]


def test_run_ahead_leaves_no_forward_behind_a_stop_token() -> None:
    host = MiniHost(script=script([EOS]), per_wait=1000)

    async def main() -> None:
        ctx = Context(run_ahead=4)
        ctx.fill(PROMPT)
        assert await ctx.generate_until(max_tokens=40) == ""

    run(host, main)
    assert host.computed_tokens == PREFIX


def test_end_of_sequence_can_be_ignored_and_other_tokens_can_stop() -> None:
    host = MiniHost(script=script([EOS, *b"ab;cd"]))

    async def main() -> tuple[str, list[int]]:
        ctx = Context()
        ctx.fill(PROMPT)
        text = await ctx.generate_until(StopTokens(b";") | Length(10), eos=False)
        return text, ctx.tokens[PREFIX:]

    assert run(host, main) == ("</s>ab", [EOS, *b"ab;"])


def test_characters_split_over_tokens_come_out_whole() -> None:
    text = "naïve 🥧 日本"
    raw = text.encode()
    host = MiniHost(script=script(raw))

    async def main() -> list[str]:
        ctx = Context()
        ctx.fill(PROMPT)
        return [piece async for piece in ctx.generate(max_tokens=len(raw))]

    pieces = run(host, main)
    assert "".join(pieces) == text
    assert len(pieces) == len(raw)
    assert "\ufffd" not in "".join(pieces)


def test_a_character_cut_by_the_limit_is_shown_as_cut() -> None:
    host = MiniHost(script=script("a🥧".encode()))

    async def main() -> str:
        ctx = Context()
        ctx.fill(PROMPT)
        return await ctx.generate_until(max_tokens=3)

    assert run(host, main) == "a\ufffd"


@pytest.mark.parametrize("room", [0, 1, 7])
def test_generation_ends_at_the_model_s_last_position(room: int) -> None:
    class Short(MiniHost):
        def model_info(self) -> dict[str, Any]:
            return {**super().model_info(), "max_position": PREFIX + room}

    async def main() -> tuple[str | None, int, int]:
        ctx = Context()
        ctx.fill(PROMPT)
        generation = ctx.generate(eos=False)
        async for _ in generation:
            pass
        assert generation.tokens == ctx.tokens[PREFIX:]
        return generation.stopped_by, len(generation.tokens), len(ctx)

    assert run(Short(), main) == ("length", room, PREFIX + room)


@pytest.mark.parametrize("per_wait", [1, 2, 5, 100])
@pytest.mark.parametrize("prompt", range(9, 14))
@pytest.mark.parametrize("run_ahead", [0, 1, 4])
def test_pages_that_only_dropped_steps_needed_are_no_failure(run_ahead: int, prompt: int, per_wait: int) -> None:
    text = """
        from inferlet import Context, errors
        async def main(args):
            ctx = Context(run_ahead=int(args[0]))
            ctx.fill_tokens([65] * int(args[1]))
            text = await ctx.generate_until("E")
            full = 16 - len(ctx)
            assert len(await ctx.generate_until(max_tokens=full, eos=False)) == full
            assert ctx.num_pages == 4
            try:
                await ctx.generate_until(max_tokens=2, eos=False)
            except errors.PageQuotaExceeded:
                return text
    """
    said = {prompt - 1 + i: token for i, token in enumerate(b"abEnext")}
    host = MiniHost(page_size=4, page_limit=4, script=said, per_wait=per_wait)
    assert run_source(host, textwrap.dedent(text), str(run_ahead), str(prompt)) == "ab"


def test_stop_conditions_combine_by_or() -> None:
    assert Until("a") | Length(5) | Length(3) | StopTokens([1]) == inferlet.Stop(3, ("a",), (1,))
