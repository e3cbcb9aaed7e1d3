"""What can't be meant is refused where it is written, with what to write instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from inferlet import (
    Context,
    Embed,
    KvPage,
    Length,
    StopTokens,
    Temperature,
    TopK,
    Until,
    alloc_emb,
    alloc_kvpage,
    cancel,
    copy_kvpage,
    create_queue,
    dealloc_emb,
    dealloc_kvpage,
    detokenize,
    errors,
    format_chat,
    get_vocabs,
    mask_kvpage,
    send,
    synchronize,
    tokenize,
)
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import reference_generate

SECONDS: dict[str, Callable[[Context], Any]] = {
    "generate": lambda ctx: ctx.generate(max_tokens=3),
    "fill": lambda ctx: ctx.fill("more"),
    "fill_tokens": lambda ctx: ctx.fill_tokens([1]),
    "chat": lambda ctx: ctx.chat("more"),
    "fork": lambda ctx: ctx.fork(),
}


def text_of(prompt: str, n: int) -> str:
    return bytes(reference_generate(tokens_of(prompt), n)).decode(errors="replace")


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("turns", [1, 2, 7, 30])
@pytest.mark.parametrize("per_wait", [1, 100])
def test_what_begins_while_a_task_generates_is_refused_and_the_task_goes_on(
    second: str, turns: int, per_wait: int
) -> None:
    async def main() -> str:
        async with Context() as ctx:
            ctx.fill("Hello")
            first = asyncio.create_task(ctx.generate_until(max_tokens=50))
            for _ in range(turns):
                await asyncio.sleep(0)
            with pytest.raises(errors.InvalidArgument, match="it generates already: fork it"):
                SECONDS[second](ctx)
            return await first

    host = MiniHost(per_wait=per_wait)
    assert run(host, main) == text_of("Hello", 50)
    assert held(host) == (0, 0, 0)


def test_two_generations_at_once_never_end_in_silence() -> None:
    """Also where the second begins just when the first's token is there and its task has not gone on yet."""

    async def main(wait: int) -> tuple[Any, Any]:
        async with Context() as ctx, asyncio.timeout(5):
            ctx.fill("Hello")
            queue = create_queue()

            async def late() -> str:
                for _ in range(wait):
                    await synchronize(queue)
                return await ctx.generate_until(max_tokens=3)

            return await asyncio.gather(ctx.generate_until(max_tokens=8), late(), return_exceptions=True)

    whole = text_of("Hello", 8)
    told = set()
    for wait in range(1, 12):
        for per_wait in (1, 2, 3, 5):
            first, second = run(MiniHost(per_wait=per_wait), lambda wait=wait: main(wait))  # type: ignore[misc]
            refused = [isinstance(result, errors.InvalidArgument) for result in (first, second)]
            assert any(refused) or first == whole
            assert first == whole or refused[0]
            told.add(tuple(refused))
    assert told == {(False, True), (True, False), (False, False)}


def test_a_loop_that_was_left_or_cancelled_makes_way() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill("Hello")
            async for _ in ctx.generate(max_tokens=50):
                ctx.fill("!")
                break
            task = asyncio.create_task(ctx.generate_until(max_tokens=50))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            ctx.generate(max_tokens=50)
            assert len(await ctx.generate_until(max_tokens=5)) > 0

    run(MiniHost(), main)


@pytest.mark.parametrize("message", [3, None, ["a"], {"a": 1}, 2.5])
def test_a_message_is_text_or_bytes(message: Any) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="send takes a str or bytes, not "):
            send(message)
        for sent in ("a", b"b", bytearray(b"c"), memoryview(b"d")):
            send(sent)  # type: ignore[arg-type]

    host = MiniHost()
    run(host, main)
    assert host.sent == [b"a", b"b", b"c", b"d"]


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "max_tokens=-3": (lambda: Length(-3), ValueError, "max_tokens is -3, it must be at least 0"),
    "max_tokens='8'": (lambda: Length("8"), TypeError, "max_tokens is a whole number, not '8'"),  # type: ignore[arg-type]
    "a list of stop strings": (lambda: Until(["a", "b"]), TypeError, r"Until takes .*: give Until\('a', 'b'\)"),  # type: ignore[arg-type]
    "one stop token": (lambda: StopTokens(2), TypeError, "StopTokens takes a list of token ids, not 2"),  # type: ignore[arg-type]
    "a negative stop token": (lambda: StopTokens([-2]), ValueError, "at least 0"),
    "a stop or a sampler": (lambda: Length(2) | Temperature(1), TypeError, "unsupported operand"),  # type: ignore[operator]
    "a sampler or a stop": (lambda: Temperature(1) | Length(2), TypeError, "unsupported operand"),  # type: ignore[operator]
    "a word for a number": (lambda: Temperature("hot"), TypeError, "temperature is a number, not 'hot'"),  # type: ignore[arg-type]
    "half a token": (lambda: TopK(2.5), TypeError, "top_k is a whole number, not 2.5"),  # type: ignore[arg-type]
    "no number": (lambda: Temperature(float("nan")), ValueError, "temperature is nan"),
    "negative pages": (lambda: alloc_kvpage(-1), errors.InvalidArgument, "n of alloc_kvpage: .* at least 0, not -1"),
    "two texts": (lambda: tokenize("a", "b"), TypeError, "tokenize takes one text, not 2"),  # type: ignore[call-overload]
    "no text": (lambda: tokenize(None), TypeError, "tokenize takes a str, not None"),  # type: ignore[call-overload]
    "two token lists": (lambda: detokenize([1], [2]), TypeError, "detokenize takes one "),  # type: ignore[call-overload]
    "a message alone": (lambda: format_chat({"role": "user"}), TypeError, "a list of messages, such as"),  # type: ignore[arg-type]
    "a seed of letters": (lambda: Context(seed="x"), TypeError, "seed is a whole number, not 'x'"),  # type: ignore[arg-type]
    "negative run-ahead": (lambda: Context(run_ahead=-1), ValueError, "run_ahead is -1, it must be at least 0"),
    "an empty stop": (lambda: Until("a", ""), ValueError, "Until takes texts that are not empty"),
    "a page twice": (lambda: dealloc_kvpage([KvPage(0)] * 2), errors.InvalidArgument, "pages of dealloc_kvpage.*twice"),
    "a negative ticket": (lambda: cancel(-1), errors.InvalidArgument, "since of cancel"),
    "letters for tokens": (lambda: get_vocabs(first="a"), errors.InvalidArgument, "first of get_vocabs"),  # type: ignore[arg-type]
    "an embed to mask": (lambda: mask_kvpage(Embed(0), 1), errors.InvalidArgument, "page of mask_kvpage"),  # type: ignore[call-overload]
    "a word to mask": (lambda: mask_kvpage(KvPage(0), "no"), errors.InvalidArgument, "list of booleans.*'no'"),  # type: ignore[arg-type]
    "a mask too long": (
        lambda: mask_kvpage(KvPage(0), [True] * 40),
        errors.InvalidArgument,
        "tokens of a page, not 40",
    ),
    "bits too many": (lambda: mask_kvpage(KvPage(0), 1 << 40), errors.InvalidArgument, "tokens of a page"),
    "an embed to copy": (lambda: copy_kvpage(Embed(0), KvPage(1)), errors.InvalidArgument, "src of copy_kvpage"),  # type: ignore[call-overload]
    "past a page's end": (
        lambda: copy_kvpage(KvPage(0), KvPage(1), src_offset=20),
        errors.InvalidArgument,
        "src_offset",
    ),
    "half a character": (lambda: send("\ud800"), errors.InvalidArgument, "half a character"),
    "half a character to tokenize": (lambda: tokenize("a\udc00"), errors.InvalidArgument, "at 1 is half a character"),
}
OF_A_CONTEXT: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a length": (lambda ctx: ctx.generate(20), TypeError, "not 20: give max_tokens=20"),
    "a negative length": (lambda ctx: ctx.generate(max_tokens=-3), ValueError, "max_tokens is -3"),
    "a sampler": (lambda ctx: ctx.generate(Temperature(1)), TypeError, r"give sampler=Sampler\(temperature=1\)"),
    "stop strings": (lambda ctx: ctx.generate(["a", "b"]), TypeError, r"give Until\('a', 'b'\)"),
    "stop tokens": (lambda ctx: ctx.generate([1, 2]), TypeError, r"give StopTokens\(\[1, 2\]\)"),
    "no text": (lambda ctx: ctx.fill(None), TypeError, "fill takes a str, not None: `fill_tokens` takes"),
    "a number": (lambda ctx: ctx.fill(123), TypeError, "fill takes a str, not 123"),
    "text for tokens": (lambda ctx: ctx.fill_tokens("ab"), TypeError, "a list of token ids, not 'ab'"),
    "negative tokens": (lambda ctx: ctx.fill_tokens([-1]), ValueError, "token ids, which are at least 0"),
    "a message alone": (lambda ctx: ctx.chat({"role": "user", "content": "hi"}), TypeError, "a list of messages"),
    "texts for messages": (lambda ctx: ctx.chat(["hi"]), TypeError, "a list of messages"),
    "negative forks": (lambda ctx: ctx.fork(-1), ValueError, "the number of forks is -1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_refused_where_it_is_given(what: str) -> None:
    call, kind, text = WRONG[what]

    async def main() -> None:
        with pytest.raises(kind, match=text):
            call()

    run(MiniHost(), main)


@pytest.mark.parametrize("what", OF_A_CONTEXT)
def test_a_context_refuses_a_wrong_argument_and_stays_as_it_is(what: str) -> None:
    call, kind, text = OF_A_CONTEXT[what]

    async def main() -> str:
        async with Context() as ctx:
            ctx.fill("Hello")
            with pytest.raises(kind, match=text):
                call(ctx)
            return await ctx.generate_until(max_tokens=8)

    assert run(MiniHost(), main) == text_of("Hello", 8)


def test_none_of_something_takes_no_ids() -> None:
    async def main() -> list[int]:
        freed = alloc_emb(3)
        dealloc_emb(freed)
        assert alloc_emb(0) == []
        return [*alloc_emb(2), *alloc_emb(2)]

    host = MiniHost()
    assert len(set(run(host, main))) == 4
