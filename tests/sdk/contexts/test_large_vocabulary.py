"""A context of a model with a large vocabulary gets the bytes of its tokens with the tokens."""

from __future__ import annotations

import pytest

from inferlet import Context, Temperature
from inferlet._models import vocab
from tartlet_common.abi import Op
from tests.sdk.host.harness import run
from tests.sdk.host.mini_host import MiniHost


class Counting(MiniHost):
    """Counts the operations that it answers at once."""

    vocabs = 0

    def at_once(self, command: object) -> None:
        self.vocabs += command.op is Op.GET_VOCABS  # type: ignore[attr-defined]
        super().at_once(command)  # type: ignore[arg-type]


def text_of(host: MiniHost) -> str:
    async def main() -> str:
        async with Context(seed=3) as ctx:
            ctx.fill("Hello, ")
            return await ctx.generate_until(max_tokens=12, sampler=Temperature(0.8))

    return run(host, main)


def test_no_block_of_the_vocabulary_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large, silent = Counting(), Counting(), Counting()
    wanted = text_of(small)
    monkeypatch.setattr(vocab, "SMALL_VOCABULARY", 16)
    assert text_of(large) == wanted
    assert (small.vocabs, large.vocabs) == (1, 0)
    silent.tells_bytes = False  # as an engine of the last release
    assert text_of(silent) == wanted
    assert silent.vocabs >= 1


def test_log_probabilities_of_other_tokens_still_have_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocab, "SMALL_VOCABULARY", 16)

    async def main() -> None:
        async with Context() as ctx:
            ctx.fill("Hello, ")
            async for piece in ctx.generate(max_tokens=4, logprobs=3):
                assert len(piece.logprobs) == 3
                assert all(piece.token_bytes[token] == bytes([token]) for token in piece.logprobs if token < 256)

    run(MiniHost(), main)
