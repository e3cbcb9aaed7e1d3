"""Hold a conversation: the client sends messages, and answers stream back as they are generated.

tartlet run --interactive inferlets/std/chat.py    # each line is a message; "bye" ends it
"""

from __future__ import annotations

from inferlet import Context, get_arg, receive, send


async def main() -> None:
    """Answer until the client says "bye". The program's arguments become the system message."""
    async with Context() as ctx:
        if get_arg():
            ctx.chat([{"role": "system", "content": " ".join(get_arg())}])
        while (said := await receive()) != "bye":
            ctx.chat(said)
            async for piece in ctx.generate(max_tokens=256):
                if piece:
                    send(piece)
            send("\n")
