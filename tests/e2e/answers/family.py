"""Starts programs: children of its own source, and of the catalogue."""

import asyncio
import json

from inferlet import (
    Child,
    broadcast,
    continue_as_new,
    errors,
    export_kvpage,
    get_instance_id,
    import_kvpage,
    receive,
    send,
    spawn,
    subscribe,
    unexport_kvpage,
)


async def main(args: list[str]) -> object:
    return await ROLES[args[0]](*args[1:])


async def echo(name: str) -> str:
    """Says its name, then each message again, until it is told to end."""
    send(f"{name} begins")
    while (message := await receive()) != "end":
        send(f"{name} heard {message}")
    return f"{name} ends"


async def fails() -> None:
    raise ValueError("as asked")


async def sleeps() -> None:
    await asyncio.sleep(1000)


async def talk(inferlet: str = "") -> str:
    """Starts two children, talks with both at once, and returns what they said."""
    children = await asyncio.gather(*(spawn(inferlet, ["echo", name]) for name in ("a", "b")))
    send(json.dumps([child.id for child in children]))
    await receive()
    for number in range(3):
        await asyncio.gather(*(child.send(str(number)) for child in children))
    await asyncio.gather(*(child.send("end") for child in children))
    said = [[message async for message in child] for child in children]
    return json.dumps([said, [await child.result() for child in children]])


async def starts(detached: str) -> None:
    """Starts a child that waits, and waits."""
    child = await spawn(args=["echo", "c"], detached=detached == "detached")
    send(child.id)
    await receive()


async def told(child: Child) -> str:
    try:
        return await child.result()
    except errors.ChildFailed as e:
        return type(e.__cause__).__name__


async def refusals() -> str:
    """Returns the errors of children that fail, or that can't start."""
    found = [await told(await spawn(args=["fails"])), await told(await spawn(args=["sleeps"], deadline_s=0.2))]
    killed = await spawn(args=["sleeps"])
    await killed.kill("enough")
    found.append(await told(killed))
    for asked in ({"inferlet": "nobody"}, {"args": ["fails"], "children": 1000}, {"inferlet": "nobody", "pages": -1}):
        try:
            await spawn(**asked)
        except errors.TartletError as e:
            found.append(type(e).__name__)
    try:
        await killed.send("too late")
    except errors.TartletError as e:
        found.append(type(e).__name__)
    nested = await spawn(args=["nests"])  # which may start none
    return json.dumps([*found, await nested.result(), await (await spawn(args=["nests"], children=1)).result()])


async def nests() -> str:
    try:
        child = await spawn(args=["echo", get_instance_id()])
    except errors.ResourceQuotaExceeded:
        return "none"
    await child.send("end")
    return (await child.result())[-4:]


async def ends() -> None:
    """Ends at once."""


async def reborn(how: str, run: str = "1") -> str:
    """Starts a child that may start 200 more, in each of three runs; returns in which run it may not."""
    try:
        child = await spawn(args=["ends"], detached=how == "detached", children=200)
    except errors.ResourceQuotaExceeded:
        return f"refused in run {run}"
    await child.result()
    if run != "3":
        continue_as_new(["reborn", how, str(int(run) + 1)])
    return "never refused"


async def listens(topic: str) -> None:
    async with subscribe(topic):
        pass


async def bounded() -> str:
    """Returns what came of topics, names and programs that its launch doesn't allow, and of those that it does."""
    found = []
    for name in ("secret", "open/a"):
        calls = (
            lambda name=name: broadcast(name, "hi"),
            lambda name=name: listens(name),
            lambda name=name: export_kvpage(None, name, tail=[72]),
            lambda name=name: import_kvpage(name),
            lambda name=name: unexport_kvpage(name),
            lambda name=name: spawn(name, ["ends"]),
        )
        for call in calls:
            try:
                await call()
                found.append("done")
            except errors.TartletError as e:
                found.append(type(e).__name__)
    return json.dumps(found)


ROLES = {f.__name__: f for f in (bounded, echo, ends, fails, nests, reborn, refusals, sleeps, starts, talk)}
