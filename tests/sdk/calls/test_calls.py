"""The calls by the paper's names, against `MiniHost`; the paper's listings among them."""

from __future__ import annotations

import asyncio

import pytest

from inferlet import (
    KvPage,
    Priority,
    alloc_emb,
    alloc_kvpage,
    alloc_slot,
    available_models,
    available_models_with_traits,
    available_traits,
    cancel,
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
    get_arg,
    get_instance_id,
    get_kv_page_size,
    get_model,
    get_next_dist,
    get_next_dists,
    get_version,
    get_vocabs,
    mark,
    mask_kvpage,
    prompt_template,
    receive,
    receive_bytes,
    reset,
    sample,
    send,
    set_queue_priority,
    synchronize,
    tokenize,
    usage,
)
from inferlet._queues.queue import Queue
from inferlet._wire.channel import reset as fresh_channel
from tartlet_common.errors.registry import ProgramKilled
from tests.sdk.host.harness import held, run
from tests.sdk.host.mini_host import INSTANCE, MiniHost
from tests.sdk.host.mini_model import EOS, probabilities, reference_generate, reference_states, state_of

CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def test_the_paper_s_loop_runs_at_page_size_one() -> None:
    host = MiniHost(page_size=1)
    texts: list[str] = []

    async def main() -> None:
        prom = await tokenize("Hello,")
        tok_limit = len(prom) + 10
        prom_emb = alloc_emb(len(prom))
        gen_emb = alloc_emb(1)
        kv = alloc_kvpage(tok_limit)
        pos = list(range(len(prom)))
        embed_txt(prom, pos, prom_emb)
        forward([], prom_emb, kv[: len(prom)], gen_emb)
        for i in range(len(prom), tok_limit):
            dist = await get_next_dist(gen_emb)
            gen = dist.max_index()
            texts.append(await detokenize(gen))
            embed_txt(gen, [i], gen_emb)
            forward(kv[:i], gen_emb, kv[i : i + 1], gen_emb)
        dealloc_emb(prom_emb)
        dealloc_emb(gen_emb)
        dealloc_kvpage(kv)

    run(host, main)
    assert "".join(texts).encode() == bytes(reference_generate(b"Hello,", 10))
    assert held(host) == (0, 0, 0)


def test_the_paper_s_split_forward_gives_what_the_whole_one_gives() -> None:
    async def main() -> tuple[list[int], list[int]]:
        tokens = list(b"nine tokn")
        iemb = alloc_emb(9)
        oemb = alloc_emb(1)
        embed_txt(tokens, range(9), iemb)
        forward([], iemb, [], oemb)
        whole = await get_next_dist(oemb)
        kv = alloc_kvpage(8)
        forward([], iemb[:-1], kv)
        forward(kv, iemb[-1:], oemb=oemb)
        split = await get_next_dist(oemb)
        return list(whole.tokens), list(split.tokens)

    whole, split = run(MiniHost(page_size=1), main)
    assert whole == split
    state = reference_states(b"nine tokn")[-1]
    assert whole[0] == int(probabilities(state, 8, {}).argmax())


def test_a_queue_of_one_s_own_may_lead_every_call() -> None:
    host = MiniHost()

    async def main() -> None:
        model = await get_model()
        q = create_queue(model)
        set_queue_priority(q, Priority.HIGH)
        set_queue_priority(Priority.LOW)
        ids = await tokenize(q, "ab")
        assert await detokenize(q, ids) == "ab"
        emb, out, kv, slot = alloc_emb(q, 2), alloc_emb(q, 1), alloc_kvpage(q, 1), alloc_slot(q, 1)
        embed_txt(q, ids, [0, 1], emb)
        forward(q, [], emb, kv, out)
        first = await sample(q, out, slot)
        embed_txt(q, slot[0], 2, emb[0])
        forward(q, kv, emb[:1], kv, out, okv_offset=2)
        second = await sample(q, out, slot[0], stop=[])
        assert [first.token, second.token] == reference_generate(b"ab", 2)
        assert first.logprob < 0
        assert not first.ended
        await synchronize(q)
        dealloc_emb(q, emb + out)
        dealloc_kvpage(q, kv)
        dealloc_slot(q, slot)

    run(host, main)
    assert held(host) == (0, 0, 0)


def test_a_mask_decides_instead_of_positions() -> None:
    async def main() -> list[int]:
        kv, emb, out = alloc_kvpage(1), alloc_emb(3), alloc_emb(1)
        embed_txt(list(b"abc"), [0, 1, 2], emb)
        forward([], emb[:2], kv)
        mask = [[True, False, True, True, True]]  # the page's four slots, then the token itself
        forward(kv, emb[2:], [], out, mask=mask)
        return [(await get_next_dist(out)).max_index()]

    states = reference_states(b"ab")
    masked = state_of(ord("c"), 2, [(0, states[0])])
    assert run(MiniHost(), main) == [int(probabilities(masked, 2, {}).argmax())]


@pytest.mark.parametrize("mask", [[True, False], 0b01])
def test_masked_slots_are_hidden_until_they_are_shown_again(mask: list[bool] | int) -> None:
    async def main() -> tuple[int, int]:
        kv, emb, out = alloc_kvpage(1), alloc_emb(3), alloc_emb(1)
        embed_txt(list(b"abc"), [0, 1, 2], emb)
        forward([], emb[:2], kv)
        mask_kvpage(kv[0], mask)
        forward(kv, emb[2:], oemb=out)
        hidden = await get_next_dist(out)
        mask_kvpage(kv[0], [])
        forward(kv, emb[2:], oemb=out)
        return hidden.max_index(), (await get_next_dist(out)).max_index()

    states = reference_states(b"abc")
    one = state_of(ord("c"), 2, [(1, states[1])])
    best = [int(probabilities(s, 2, {}).argmax()) for s in (one, states[2])]
    assert run(MiniHost(), main) == tuple(best)


def test_a_copied_page_holds_the_same_tokens() -> None:
    async def main() -> list[int]:
        kv, emb, out = alloc_kvpage(2), alloc_emb(3), alloc_emb(1)
        embed_txt(list(b"abc"), [0, 1, 2], emb)
        forward([], emb[:2], kv[:1])
        copy_kvpage(kv[0], kv[1], size=2)
        forward(kv[1:], emb[2:], oemb=out)
        return [(await get_next_dist(out)).max_index()]

    assert run(MiniHost(), main) == reference_generate(b"abc", 1)


def test_distributions_are_cut_and_sorted() -> None:
    async def main() -> None:
        emb, out = alloc_emb(2), alloc_emb(2)
        embed_txt(list(b"ab"), [0, 1], emb)
        forward([], emb, oemb=out)
        a, b = await get_next_dists(out, top_k=5)
        assert len(a) == len(b) == 5
        assert list(a.probs) == sorted(a.probs, reverse=True)
        assert a.prob(a.tokens[3]) == a.probs[3]
        assert a.sample(0.0) == a.tokens[0]
        assert a.sample(0.999999) == a.tokens[4]
        assert list((await get_next_dist(out[1], top_k=5)).tokens) == list(b.tokens)

    run(MiniHost(), main)


def test_ids_are_dense_and_reused_in_the_queue_that_freed_them() -> None:
    async def main() -> None:
        q = create_queue()
        a, b = alloc_kvpage(2), alloc_kvpage(q, 2)
        assert a + b == [0, 1, 2, 3]
        dealloc_kvpage(a)
        assert alloc_kvpage(q, 1) == [4]  # the other queue can't know when 0 and 1 are free
        assert sorted(alloc_kvpage(2)) == [0, 1]
        await synchronize()

    run(MiniHost(), main)


def test_what_reads_an_ended_slot_is_skipped() -> None:
    async def main() -> None:
        emb, out, slot = alloc_emb(1), alloc_emb(1), alloc_slot(1)
        embed_txt(65, 0, emb)
        forward([], emb, oemb=out)
        ended = sample(out, slot, stop=[EOS])
        embed_txt(slot, [1], emb)
        forward([], emb, oemb=out)
        skipped = sample(out, slot)
        assert (await ended).ended
        with pytest.raises(errors.CommandSkipped):
            await skipped

    run(MiniHost(script={0: EOS}), main)


def test_cancel_drops_what_has_not_run() -> None:
    async def main() -> None:
        emb, out, slot = alloc_emb(1), alloc_emb(1), alloc_slot(1)
        embed_txt(65, 0, emb)
        forward([], emb, oemb=out)
        kept = sample(out, slot)
        since = mark()
        embed_txt(slot, [1], emb)
        forward([], emb, oemb=out)
        dropped = sample(out, slot)
        assert await cancel(since) == since
        await kept
        with pytest.raises(errors.CommandCancelled):
            await dropped
        assert await cancel(since) == 0

    host = MiniHost()
    run(host, main)
    assert host.computed_tokens == 1


def test_a_failure_poisons_its_queue_until_reset_and_no_other() -> None:
    async def main() -> None:
        q1, q2 = create_queue(), create_queue()
        emb = alloc_emb(q1, 1)
        [wrong] = alloc_emb(q2, 1)
        dealloc_emb(q2, [wrong])
        await synchronize(q2)
        with pytest.raises(errors.UnknownResource) as first:
            await get_next_dist(q1, wrong)
        with pytest.raises(errors.UnknownResource):
            await synchronize(q1)
        assert first.value.fields["id"] == wrong
        await synchronize(q2)
        reset(q1)
        await synchronize(q1)
        dealloc_emb(q1, emb)

    run(MiniHost(), main)


def test_wrong_arguments_are_refused_at_once() -> None:
    async def main() -> None:
        emb, slot = alloc_emb(2), alloc_slot(1)
        with pytest.raises(errors.InvalidArgument, match="2 tokens, 1 positions and 2 embeds"):
            embed_txt([1, 2], [0], emb)
        with pytest.raises(errors.InvalidArgument, match="can't be mixed"):
            embed_txt([1, slot[0]], [0, 1], emb)
        with pytest.raises(errors.InvalidArgument, match="expected one, got 2"):
            await get_next_dist(emb)
        with pytest.raises(errors.InvalidArgument, match="1 rows of 1 columns"):
            forward([], emb[:1], mask=[[True, True]])
        with pytest.raises(errors.FrameTooLarge, match=r"^5242880 bytes in one call; the limit is [0-9]+\n"):
            send(b"x" * (5 << 20))

    run(MiniHost(), main)


def test_messages_go_both_ways() -> None:
    host = MiniHost()

    async def main() -> None:
        waiting = receive()
        send("héllo")
        send(b"\x00\xff")
        await synchronize()
        assert not waiting.done()
        host.deliver("één".encode())
        assert await waiting == "één"
        host.deliver(b"\x80")
        assert await receive_bytes() == b"\x80"

    run(host, main)
    assert host.sent == ["héllo".encode(), b"\x00\xff"]


def test_models_and_text() -> None:
    async def main() -> None:
        assert await available_models() == ["mini"]
        model = await get_model("mini")
        assert model is await get_model()
        assert get_kv_page_size() == get_kv_page_size(model) == 4
        assert "Sample" in available_traits()
        assert await tokenize("a", special=True) == [256, 97]
        assert await detokenize_bytes(list("é".encode())[:1]) == b"\xc3"
        assert len(await get_vocabs()) == model.vocab_size
        assert await get_vocabs(first=97, count=2) == [b"a", b"b"]
        assert get_arg() == []
        assert model.license == "MIT"
        assert model.version == "7"
        assert "tiny" in model.description
        assert await available_models_with_traits(["Forward", "Sample"]) == ["mini"]
        assert await available_models_with_traits(["Forward", "InputImage"]) == []
        with pytest.raises(errors.InvalidArgument):
            available_models_with_traits("Forward")
        assert await prompt_template(model) == CHAT
        assert (get_version(), get_instance_id()) == ("0.1.0", INSTANCE)
        kv = alloc_kvpage(3)
        await synchronize()
        assert (await usage()).pages == 3
        dealloc_kvpage(kv)

    run(MiniHost(template=CHAT), main)


def test_commands_without_reply_cost_one_submission_at_the_next_blocking_point() -> None:
    host = MiniHost()

    async def main() -> None:
        emb, out = alloc_emb(1), alloc_emb(1)
        for i in range(50):
            embed_txt(65, i, emb)
            forward([], emb, oemb=out)
        await asyncio.gather(synchronize(), get_next_dist(out))

    run(host, main)
    assert len(host.submissions) == host.waits == 1


def test_a_program_that_records_without_end_submits_in_between() -> None:
    host = MiniHost()

    async def main() -> None:
        for _ in range(40):
            send(b"x" * 100_000)
        await synchronize()

    run(host, main)
    assert len(host.sent) == 40
    assert max(map(len, host.submissions)) < 400_000


def test_kill_ends_the_program_with_its_error() -> None:
    host = MiniHost()

    async def main() -> None:
        host.kill(ProgramKilled(reason="by hand"))
        try:
            await receive()
        finally:
            send("cleaned up")

    with pytest.raises(errors.ProgramKilled, match="by hand"):
        run(host, main)


def test_a_failure_heard_of_after_the_reset_poisons_nothing_behind_it() -> None:
    fresh_channel()
    queue = Queue(0, None)
    queue.alloc_kvpage(1)
    failing = queue.mark()
    queue.copy_kvpage(KvPage(8), KvPage(9), size=1)  # under way when the queue is reset
    queue.reset()
    after = queue.mark()
    queue.alloc_kvpage(1)
    queue.fail(failing, errors.UnknownResource(kind="page", id=8))
    assert queue.failure is None
    assert (queue.lost(failing), queue.lost(after)) == (True, False)
