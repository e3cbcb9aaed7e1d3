"""Whatever a program does with contexts, in whatever order: the tokens are those of a plain sequence, nothing leaks."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferlet import Context, Length, StopTokens, Temperature, Until, synchronize, usage
from tests.sdk.host.harness import held, run, tokens_of
from tests.sdk.host.mini_host import MiniHost
from tests.sdk.host.mini_model import reference_generate

Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["fill", "generate", "break", "until", "stop", "sample", "fork", "flush", "close", "cancel"]),
        st.integers(0, 7),
    ),
    max_size=12,
)


class Mirror:
    """A context, and the tokens that it should have."""

    def __init__(self, ctx: Context, expected: list[int]) -> None:
        self.ctx, self.expected = ctx, expected

    def generated(self, tokens: list[int], *, temperature: float = 0.0) -> None:
        """The context has generated `tokens`."""
        params = (temperature, 0, 1.0, 0.0, self.ctx.seed, self.ctx.draw)
        assert tokens == reference_generate(self.expected, len(tokens), params)
        self.expected.extend(tokens)
        assert self.ctx.tokens == self.expected

    async def do(  # noqa: C901 - one case a step
        self, what: str, n: int
    ) -> list[Mirror]:
        """One step; the forks that it made."""
        ctx = self.ctx
        match what:
            case "fill":
                ctx.fill("filled in"[: n + 1], special=False)
                self.expected.extend(b"filled in"[: n + 1])
            case "generate":
                await self.collect(max_tokens=n)
            case "until":
                await self.collect(Until("e", "fg") | Length(n))
            case "stop":
                await self.collect(StopTokens(range(40 + n, 80)) | Length(5))
            case "sample":
                await self.collect(max_tokens=n, sampler=Temperature(1.0))
            case "break":
                generation = ctx.generate(max_tokens=20)
                async for _ in generation:
                    if len(generation.tokens) > n:
                        break
                generation.stop()
                self.generated(generation.tokens)
            case "cancel":
                generation = ctx.generate(max_tokens=20)
                task = asyncio.ensure_future(generation.__anext__())
                for _ in range(n):
                    await synchronize()  # a blocking point: the host gets on with what is queued
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                generation.stop()
                await ctx.flush()
                self.generated(generation.tokens)
            case "flush":
                await ctx.flush()
            case "fork":
                return [Mirror(child, self.expected.copy()) for child in ctx.fork(1 + n % 3)]
        return []

    async def collect(self, *args: Any, **options: Any) -> None:
        generation = self.ctx.generate(*args, **options)
        async for _ in generation:
            pass
        sampler = options.get("sampler")
        self.generated(generation.tokens, temperature=sampler.temperature if sampler else 0.0)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    plan=steps,
    page_size=st.sampled_from([1, 2, 3, 5, 16]),
    per_wait=st.sampled_from([1, 2, 5, 1000]),
    run_ahead=st.sampled_from([0, 1, 4]),
)
def test_contexts_agree_with_plain_sequences(plan: list[Step], page_size: int, per_wait: int, run_ahead: int) -> None:
    host = MiniHost(page_size=page_size, per_wait=per_wait)

    async def main() -> None:
        ctx = Context(seed=5, run_ahead=run_ahead)
        ctx.fill("ab")
        mirrors = [Mirror(ctx, list(tokens_of("ab")))]
        for number, (what, n) in enumerate(plan):
            mirror = mirrors[number % len(mirrors)]
            if what == "close" and len(mirrors) > 1:
                mirrors.remove(mirror)
                mirror.ctx.close()
            elif len(mirrors) < 6:
                mirrors += await mirror.do(what, n)
        await asyncio.gather(*(mirror.do("generate", 3) for mirror in mirrors))
        for mirror in mirrors:
            mirror.ctx.close()
        while (await usage()).pages:  # noqa: ASYNC110 - those of forks go when the other queues are known to be past them
            await asyncio.sleep(0.001)

    run(host, main)
    assert held(host) == (0, 0, 0)
