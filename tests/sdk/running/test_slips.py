"""Slips of the calls by the paper's names: what is told, and that a single handle stands for a list of one."""

# mypy: disable-error-code="arg-type, call-overload, func-returns-value, return-value, list-item, attr-defined"

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import inferlet
from inferlet import (
    Queue,
    alloc_emb,
    alloc_kvpage,
    alloc_slot,
    copy_kvpage,
    create_queue,
    dealloc_emb,
    dealloc_kvpage,
    dealloc_slot,
    detokenize,
    detokenize_bytes,
    embed_txt,
    errors,
    forward,
    get_next_dist,
    get_next_dists,
    get_vocabs,
    mask_kvpage,
    sample,
    set_queue_priority,
    synchronize,
)
from tests.sdk.host.harness import held, run, run_source
from tests.sdk.host.mini_host import MiniHost

U32 = "a whole number from 0 to 4294967295, not "
REFUSED: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "an offset": (lambda p, e, s: forward([], e, p, e, okv_offset=-1), f"okv_offset of forward: it is {U32}-1"),
    "an adapter": (lambda p, e, s: forward([], e, adapter="a"), f"adapter of forward: it is {U32}'a'"),
    "swapped": (lambda p, e, s: forward(e, p, p, e), r"ikv of forward: .*`alloc_kvpage` gives them, not Embed\(0\)"),
    "swapped outputs": (lambda p, e, s: forward(p, e, e, p), r"okv of forward: it takes KV pages"),
    "a single one of another kind": (lambda p, e, s: forward(e[0], e), "ikv of forward: it takes KV pages"),
    "nothing": (lambda p, e, s: forward([], None), "iemb of forward: it takes embeds, .*, not None"),
    "used up": (lambda p, e, s: forward([], iter(e)), "iemb of forward: it takes a list"),
    "a page freed as an embed": (
        lambda p, e, s: dealloc_emb(p),
        r"embeds of dealloc_emb: .* not KvPage\(0\)",
    ),
    "one freed as another": (lambda p, e, s: dealloc_slot(e[1]), r"dealloc_slot: .* not Embed\(1\)"),
    "a position": (lambda p, e, s: embed_txt(72, -1, e[0]), f"positions of embed_txt: each is {U32}-1"),
    "a position of several": (lambda p, e, s: embed_txt([1, 2], [0, -2], e), f"positions of embed_txt: .*{U32}-2"),
    "text": (lambda p, e, s: embed_txt("Hello", [0], e), "tokens of embed_txt: .*`await tokenize"),
    "a letter": (lambda p, e, s: embed_txt("H", [0], e[:1]), "tokens of embed_txt: .*: 'H'"),
    "no embed": (lambda p, e, s: embed_txt(1, 0, "a"), "embeds of embed_txt: .*, not 'a'"),
    "counts": (lambda p, e, s: embed_txt([1, 2], [0], e), "2 tokens, 1 positions and 2 embeds: it takes one of each"),
    "a model's name": (lambda p, e, s: create_queue("demo"), r"model of create_queue: .*get_model\('demo'\)` gives"),
    "another": (lambda p, e, s: get_vocabs("demo"), r"model of get_vocabs: "),
    "a priority": (lambda p, e, s: set_queue_priority("high"), r"set_queue_priority: .*Priority.HIGH, not 'high'"),
    "a number's text": (lambda p, e, s: alloc_emb("3"), "n of alloc_emb: it is the number of embeds, .* not '3'"),
    "half a page": (lambda p, e, s: alloc_kvpage(3.5), "n of alloc_kvpage: .* not 3.5"),
    "tokens' text": (lambda p, e, s: detokenize("12"), "tokens of detokenize: text is no list of tokens"),
    "a negative token": (lambda p, e, s: detokenize_bytes([-1]), r"tokens of detokenize_bytes: .* not \[-1\]"),
    "two embeds": (lambda p, e, s: get_next_dist(e), "expected one, got 2: `get_next_dists` takes several"),
    "a negative top_k": (lambda p, e, s: get_next_dist(e[0], top_k=-1), f"top_k of get_next_dist: it is {U32}-1"),
    "no embeds": (lambda p, e, s: get_next_dists("ab"), "embeds of get_next_dists: it takes embeds"),
    "a word": (lambda p, e, s: sample(e[0], s, temperature="hot"), "temperature of sample: .* not 'hot'"),
    "a stop token": (lambda p, e, s: sample(e[0], s, stop=2), "stop of sample: it is a list of token ids"),
    "a copy's offset": (lambda p, e, s: copy_kvpage(p[0], p[0], dst_offset=-1, size=1), "dst_offset of copy_kvpage"),
    "pages to mask": (lambda p, e, s: mask_kvpage(p, 1), f"page of mask_kvpage: it is {U32}"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_call_names_its_argument_and_the_program_goes_on(what: str) -> None:
    call, told = REFUSED[what]

    async def main() -> None:
        pages, embeds, slots = alloc_kvpage(1), alloc_emb(2), alloc_slot(1)
        with pytest.raises(errors.InvalidArgument, match=told):
            call(pages, embeds, slots)
        embed_txt([1, 2], [0, 1], embeds)
        forward([], embeds, pages, embeds)
        assert len(await get_next_dists(embeds)) == 2
        dealloc_kvpage(pages)
        dealloc_emb(embeds)
        dealloc_slot(slots)
        await synchronize()

    host = MiniHost()
    run(host, main)
    assert held(host) == (0, 0, 0)


def test_a_single_handle_stands_for_a_list_of_one() -> None:
    async def main() -> int:
        (a, b), (page, other), (slot, spare) = alloc_emb(2), alloc_kvpage(2), alloc_slot(2)
        embed_txt(72, 0, a)
        forward([], a, page, a)
        embed_txt(73, 1, b)
        forward(page, b, other, b)
        single = await get_next_dists(b)
        embed_txt([72, 73], [0, 1], [a, b])
        forward([], [a, b], [page], [b])
        for free, handles in ((dealloc_emb, (a, b)), (dealloc_kvpage, (page, other)), (dealloc_slot, (slot, spare))):
            for handle in handles:
                free(handle)
        assert alloc_kvpage(1) == [1]
        dealloc_kvpage(1)
        await synchronize()
        return len(single)

    host = MiniHost()
    assert run(host, main) == 1
    assert held(host) == (0, 0, 0)


HINTS = {
    "len(tokenize('a'))": "comes with `await`",
    "receive().strip()": "comes with `await`",
    "'you said ' + receive()": "comes with `await`",
    "sum([get_next_dist(alloc_emb(1))])": "comes with `await`",
    "create_queue(get_model())": "comes with `await`",
    "embed_txt(tokenize('Hi'), [0, 1], alloc_emb(2))": "comes with `await`",
    "forward([], get_next_dist(alloc_emb(1)))": "comes with `await`",
    "Context().fill_tokens(tokenize('Hi'))": "comes with `await`",
    "[token for token in tokenize('Hi')]": "comes with `await`",
    "detokenize(tokenize('Hi'))": "comes with `await`",
    "Context(get_model())": "comes with `await`",
    "await Context()": "leave out `await`",
    "asyncio.create_task(main)": "`create_task(name())`",
    "await mask_kvpage(alloc_kvpage(1)[0], 1)": "leave out `await`",
    "await alloc_emb(1)": "leave out `await`",
    "[piece for piece in Context().generate()]": "`async for piece",
    "await Context().generate()": "`async for piece",
    "await Context().generate_until(temperature=0.7)": "Give `sampler=Temperature(0.7)`",
    "asyncio.create_task(receive())": "give it to `asyncio.gather`",
    "await Context().fork().generate_until()": "`fork` gives a list",
}


@pytest.mark.parametrize("slip", HINTS)
def test_a_slip_s_traceback_ends_with_what_to_write(slip: str) -> None:
    with pytest.raises((TypeError, AttributeError, RuntimeError, errors.InvalidArgument)) as caught:
        run_source(MiniHost(), f"import asyncio\nfrom inferlet import *\nasync def main():\n    return {slip}\n")
    assert HINTS[slip] in caught.value.guest_traceback.splitlines()[-1]


def test_a_name_that_was_not_imported_is_told_of_if_it_is_one_of_ours() -> None:
    for name, told in (("Context", "Write `from inferlet import Context` at the top."), ("Contexts", "NameError")):
        with pytest.raises(NameError) as caught:
            run_source(MiniHost(), f"async def main():\n    return {name}()\n")
        assert caught.value.guest_traceback.splitlines()[-1].startswith(told)


PIE = {
    "from inferlet import get_auto_model": "write `await get_model()`",
    "import pie": "write `from inferlet import ...`",
    "import inferlet; inferlet.set_return('x')": "write `return` in `main`",
    "from inferlet import Context; Context().generate_with_drafter()": "write `ctx.propose` and `ctx.accept`",
}


@pytest.mark.parametrize("line", PIE)
def test_a_name_of_pie_is_answered_with_ours(line: str) -> None:
    with pytest.raises((ImportError, AttributeError)) as caught:
        run_source(MiniHost(), f"async def main():\n    {line}\n")
    assert PIE[line] in caught.value.guest_traceback.splitlines()[-1]


def test_text_made_of_a_pending_result_is_told_of() -> None:
    host = MiniHost()
    run_source(host, "from inferlet import *\nasync def main():\n    a = receive()\n    return f'hello {a}' + str(a)\n")
    told = "prog.py:4: a call's result was made text before it came: write `await` before the call\n"
    assert host.log[2].decode() == told * 2


def test_help_shows_what_a_call_takes() -> None:
    for name in ("forward", "get_next_dist", "sample", "alloc_emb"):
        mine = list(inspect.signature(getattr(inferlet, name)).parameters)
        assert ["self", *mine] == list(inspect.signature(getattr(Queue, name)).parameters)


def test_a_long_argument_is_cut_in_the_message() -> None:
    async def main() -> None:
        async with inferlet.Context() as ctx:
            with pytest.raises(TypeError) as listed:
                ctx.fill_tokens(["a"] * 3000)
            ctx.fill("Hello")
            with pytest.raises(errors.InvalidArgument) as chosen:
                await ctx.generate_until(sampler=lambda dist: list(dist.tokens) * 20)
        assert max(len(str(listed.value)), len(str(chosen.value))) < 200

    run(MiniHost(), main)
