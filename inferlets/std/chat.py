"""A conversation: messages come from the client, answers go back as they are generated.

tartlet run --interactive inferlets/std/chat.py    # each line is a message; "bye" ends it
"""

from __future__ import annotations

from inferlet import Context, Message, get_arg, receive, send


async def main() -> None:
    """Answer until the client says bye."""
    history: list[Message] = [{"role": "system", "content": " ".join(get_arg())}] if get_arg() else []
    while (said := await receive()) != "bye":
        history.append({"role": "user", "content": said})
        async with Context() as ctx:
            ctx.chat(history)
            generation = ctx.generate(max_tokens=256)
            async for piece in generation:
                if piece:
                    send(piece)
        send("\n")
        history.append({"role": "assistant", "content": generation.text})
