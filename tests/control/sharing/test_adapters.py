"""Contexts of different LoRA adapters share no rows, and a context keeps its adapter when its engine is lost."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from tartlet_common.abi import WHOLE_TABLE, Event, Op, u32
from tartlet_common.engine.spec import EngineSpec
from tartlet_common.errors import registry as errors
from tartlet_control.directory.entries import context, named, named_of, version_of
from tartlet_control.rebuild.notes import OTHER_ADAPTER
from tartlet_control.serving.specs import spec_from_json
from tartlet_control.tables.ledger import PAGES
from tartlet_control.tables.models import ServedModel
from tartlet_worker.fake import FakeEngine, FakeOptions
from tests.control.harness import Guest, Host

SIZE = 4
OPTIONS = FakeOptions(
    page_size=SIZE, num_pages=64, num_embeds=512, num_slots=128, max_batch_tokens=64, adapters=("a", "b")
)
PROMPT = list(range(40, 55))  # three full rows and three tokens
A, B = (adapter.number for adapter in FakeEngine(OPTIONS).spec.adapters)


def fill(guest: Guest, tokens: list[int], adapter: int, *, table: int = 0, start: int = 0) -> int:
    """Compute tokens over a table behind the first `start`, and sample what follows. Returns the sample's ticket."""
    end = start + len(tokens)
    guest.table(table, keep=-(-start // SIZE) * SIZE, new=end // SIZE + 1 - -(-start // SIZE))
    guest.embed(list(range(len(tokens))), tokens, list(range(start, end)))
    guest.forward_table(table, start, list(range(len(tokens))), [64], adapter=adapter)
    return guest.sample(64, 0, temperature=1.0, seed=3, wait=True)


def begin(host: Host) -> Guest:
    guest = host.start()
    guest.alloc(Op.ALLOC_EMB, range(65))
    guest.alloc(Op.ALLOC_SLOT, [0])
    return guest


def ask(host: Host, adapter: int) -> tuple[Guest, int]:
    """Let a program compute the prompt under an adapter. Returns it, and the tokens that engines computed."""
    before = sum(engine.computed_tokens for engine, _ in host.engines)
    guest = begin(host)
    fill(guest, PROMPT, adapter)
    host.run()
    return guest, sum(engine.computed_tokens for engine, _ in host.engines) - before


def test_equal_prompts_share_rows_under_one_adapter_and_none_across_adapters() -> None:
    host = Host(OPTIONS)
    first = {adapter: ask(host, adapter) for adapter in (0, A, B)}
    assert [cost for _, cost in first.values()] == [15, 15, 15]
    assert len({tuple(guest.tokens()) for guest, _ in first.values()}) == 3
    for adapter, (guest, _) in first.items():
        again, cost = ask(host, adapter)
        assert (cost, again.tokens()) == (3, guest.tokens())
    for guest in list(host.guests.values()):
        host.end(guest)
    assert host.engine.pools[PAGES].num_cached == 9
    assert [ask(host, adapter)[1] for adapter in (B, 0, A)] == [3, 3, 3]
    host.check_idle()


def test_a_name_tells_contexts_of_different_adapters_apart() -> None:
    digests = set()
    host = Host(OPTIONS)
    for adapter in (0, A, B, A):
        guest, _ = ask(host, adapter)
        payload = u32([0]) + b"n"
        ticket = guest.put(Op.EXPORT_KVPAGE, a=0, b=WHOLE_TABLE, c=1, payload=payload, wait=True)
        host.run()
        digests.add(guest.answer(ticket).payload)
        [(key, version)] = host.core.names  # as the directory keeps it
        assert version_of(key, named_of(named(version)), context(version)) == version
    assert len(digests) == 3
    # Who imports the name and computes it under another adapter shares none of its rows.
    guest = begin(host)
    guest.put(Op.SET_PREFIX_CACHE, a=0)
    guest.put(Op.IMPORT_KVPAGE, payload=b"n", wait=True)
    host.run()
    before = host.engine.computed_tokens
    fill(guest, PROMPT, B)
    host.run()
    assert host.engine.computed_tokens - before == 15


def go_on(guest: Guest, host: Host, adapters: list[int]) -> list[int]:
    """Compute the prompt and two more texts behind it, each under its adapter; engines may die in between."""
    tickets, at = [], 0
    for adapter, tokens in zip(adapters, (PROMPT, [60, 61], [70, 71, 72, 73, 74]), strict=True):
        tickets.append(fill(guest, tokens, adapter, start=at))
        at += len(tokens)
        host.run()
    return tickets


@pytest.mark.parametrize("dies", ["engine", "control"])
@pytest.mark.parametrize("adapter", [0, A, B])
def test_a_context_is_made_again_under_its_own_adapter(adapter: int, dies: str) -> None:
    calm = Host(OPTIONS)
    undisturbed = begin(calm)
    go_on(undisturbed, calm, [adapter] * 3)
    host = Host(OPTIONS)
    guest, neighbour = begin(host), begin(host)
    fill(guest, PROMPT, adapter)
    fill(neighbour, PROMPT, A if adapter != A else 0)
    host.run()
    if dies == "control":
        host.die()
    else:
        host.core.on_engine_gone(host.engine)
        host.engines.pop()
        host.join("again", OPTIONS)
    host.run()
    fill(guest, [60, 61], adapter, start=15)
    host.run()
    fill(guest, [70, 71, 72, 73, 74], adapter, start=17)
    host.run()
    assert guest.killed is neighbour.killed is None
    assert guest.tokens() == undisturbed.tokens()


def test_a_table_that_is_continued_under_another_adapter_is_not_plain_until_it_is_cut() -> None:
    host = Host(OPTIONS)
    guest = begin(host)
    go_on(guest, host, [A, B, B])

    def export() -> int:
        payload = u32([0]) + b"n"
        return guest.put(Op.EXPORT_KVPAGE, a=0, b=WHOLE_TABLE, c=1, payload=payload, wait=True)

    refused = export()
    host.run()
    error = guest.answer(refused).error
    assert isinstance(error, errors.NotPlain)
    assert error.fields["call"] == OTHER_ADAPTER
    guest.table(0, keep=12)
    taken = export()
    host.run()
    assert guest.answer(taken).event is Event.RESULT
    fill(guest, PROMPT, B)  # from its first slot on, a table may be another adapter's
    taken = export()
    host.run()
    assert guest.answer(taken).event is Event.RESULT


@pytest.mark.parametrize("over_table", [True, False])
def test_an_adapter_that_the_model_lacks_is_refused_by_its_type(over_table: bool) -> None:
    for options, error in ((OPTIONS, errors.UnknownAdapter), (replace(OPTIONS, adapters=()), errors.UnsupportedTrait)):
        host = Host(options)
        guest = begin(host)
        guest.table(0, new=1)
        guest.alloc(Op.ALLOC_KVPAGE, [0])
        guest.embed([0], [65], [0])
        ticket = (
            guest.forward_table(0, 0, [0], [1], adapter=5, wait=True)
            if over_table
            else guest.forward([], [0], [0], [1], adapter=5, wait=True)
        )
        host.run()
        assert type(guest.answer(ticket).error) is error


def test_engines_with_other_adapters_serve_the_model_in_another_form() -> None:
    spec = FakeEngine(OPTIONS).spec
    model = ServedModel(0, spec, None, [])
    assert model.differs(spec) == ""
    assert model.differs(replace(spec, adapters=spec.adapters[:1])) == "adapters"


def test_specs_with_adapters_travel_and_impossible_ones_are_refused() -> None:
    spec = FakeEngine(OPTIONS).spec
    told = asdict(spec)
    read: EngineSpec = spec_from_json(json.dumps(told))
    assert read == spec
    assert read.adapter(A) == spec.adapters[0]
    good = told["adapters"][0]
    wrong: Any
    for wrong in ("a", {}, good | {"digest": "zz" * 8}, good | {"rank": 0}, good | {"name": ""}, good | {"more": 1}):
        with pytest.raises(errors.InvalidArgument, match="adapters"):
            spec_from_json(json.dumps(told | {"adapters": [wrong]}))
