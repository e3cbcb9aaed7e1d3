"""Writes half an answer under the demo model's adapter, waits for a message, and writes the rest, in a fork too."""

from inferlet import Context, receive, send


async def main() -> list[str]:
    ctx = Context(adapter="polite")
    ctx.chat("What is 374+588?")
    half = await ctx.generate_until(max_tokens=10)
    (fork,) = ctx.fork(1)
    await fork.flush()
    send("half")
    await receive()
    return [half + await each.generate_until(max_tokens=64) for each in (ctx, fork)]
