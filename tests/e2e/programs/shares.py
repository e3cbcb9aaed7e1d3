"""Waits for one message on a topic, notes it in the store, and tells what it sees there."""

from __future__ import annotations

import inferlet


async def main(args: list[str]) -> str:
    role = args[0]
    if role == "listen":
        async with inferlet.subscribe("news") as news:
            inferlet.send("ready")
            message = await news.receive()
        await inferlet.store_set("heard", message)
        return message
    if role == "alone":
        news = inferlet.subscribe("own")
        for text in args[1:]:
            await inferlet.broadcast("own", text)
            await inferlet.store_set(text, await news.receive())
        return f"{inferlet.get_instance_id()} {await inferlet.store_list_keys()}"
    if role == "tell":
        reached = await inferlet.broadcast("news", args[1])
        return f"{reached} {await inferlet.store_list_keys()} {await inferlet.store_get('heard')}"
    return f"{await inferlet.store_list_keys()} {await inferlet.store_get('heard')}"
