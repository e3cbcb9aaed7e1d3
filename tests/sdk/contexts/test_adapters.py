"""Contexts under a LoRA adapter: their text, forks, names and rollbacks; and what is refused."""

from __future__ import annotations

import pytest

from inferlet import Adapter, Context, PageTable, errors, forward_table, forward_with_adapter, get_all_adapters
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import ADAPTER, reference_generate

PROMPT = list(b"One, two, three, ")
NUMBER: int = ADAPTER["number"]


def test_a_context_computes_under_its_adapter_and_so_do_its_forks_and_what_follows_a_rollback() -> None:
    async def main() -> None:
        (adapter,) = await get_all_adapters()
        assert (adapter, adapter.name, adapter.rank, adapter.digest) == (NUMBER, "loud", 4, ADAPTER["digest"])
        for given in (adapter, "loud"):
            async with Context(adapter=given) as ctx:
                assert ctx.adapter == adapter
                ctx.fill_tokens(PROMPT)
                await ctx.generate_until(max_tokens=6, eos=False)
                want = reference_generate(PROMPT, 20, adapter=NUMBER)
                assert ctx.tokens[len(PROMPT) :] == want[:6]
                (fork,) = ctx.fork(1)
                assert fork.adapter == adapter
                await fork.generate_until(max_tokens=14, eos=False)
                assert fork.tokens[len(PROMPT) :] == want
                fork.close()
                ctx.rollback(3)
                await ctx.generate_until(max_tokens=5, eos=False)
                assert ctx.tokens[len(PROMPT) :] == want[:8]
        async with Context() as plain:
            plain.fill_tokens(PROMPT)
            await plain.generate_until(max_tokens=6, eos=False)
            assert plain.tokens[len(PROMPT) :] == reference_generate(PROMPT, 6) != want[:6]

    run(MiniHost(), main)


def test_a_saved_context_is_loaded_under_an_adapter() -> None:
    async def main() -> None:
        async with Context() as ctx:
            ctx.fill_tokens(PROMPT)
            await ctx.save("n")
        async with await Context.load("n", adapter="loud") as ctx:
            await ctx.generate_until(max_tokens=6, eos=False)
            assert ctx.tokens[len(PROMPT) :] == reference_generate(PROMPT, 6, adapter=NUMBER)

    run(MiniHost(), main)


def test_an_unknown_adapter_is_told_with_those_that_there_are() -> None:
    async def main() -> None:
        with pytest.raises(errors.UnknownAdapter) as caught:
            Context(adapter="quiet")
        assert caught.value.fields == {"model": "mini", "adapter": "quiet", "available": ["loud"]}
        for wrong in (7, ["loud"]):
            with pytest.raises(errors.InvalidArgument, match="adapter"):
                Context(adapter=wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="adapter"):
            forward_with_adapter("loud", [], [])  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidArgument, match="get_all_adapters"):
            forward_table(PageTable(1), 0, [], adapter="loud")  # type: ignore[call-overload]
        assert repr(Adapter(1, "a", 2, "")) == "Adapter('a')"

    run(MiniHost(), main)
