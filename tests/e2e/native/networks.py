"""A native program that uses the network as any Python does; its first argument names how."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from typing import Any

import tartlet
from inferlet import Context, receive, send


async def streams(port: str) -> str:
    """Ask a server over asyncio's streams while a context generates and a message is awaited."""
    message = asyncio.ensure_future(receive())
    send("ready")

    async def ask() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"ping\n")
        answer = (await reader.readline()).decode().strip()
        writer.close()
        await writer.wait_closed()
        return answer

    async def generate() -> int:
        async with Context() as ctx:
            ctx.fill("hello")
            return len(await ctx.generate_until(max_tokens=8))

    answers = await asyncio.gather(ask(), generate(), ask(), message)
    return " ".join(map(str, answers))


async def serves(_: str) -> str:
    """Serve a socket, and be its client."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"served\n")
        told = (await reader.readline()).decode().strip()
        writer.close()
    return told


async def processes(_: str) -> str:
    """Start a process, talk to it, and await its end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(input()[::-1])", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    written, _errors = await process.communicate(b"abc\n")
    return f"{written.decode().strip()} {process.returncode}"


async def httpx_client(url: str) -> str:
    """Ask an HTTP server with httpx."""
    import httpx

    async with httpx.AsyncClient(trust_env=False) as client:
        replies = await asyncio.gather(*(client.get(f"{url}/{number}") for number in range(3)))
    return " ".join(reply.text for reply in replies)


async def aiohttp_client(url: str) -> str:
    """Ask an HTTP server with aiohttp."""
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{url}/aio") as reply:
        return await reply.text()


async def grpc_client(address: str) -> str:
    """Ask a gRPC server with grpc.aio."""
    import grpc.aio

    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary("/test.Echo/Echo")
        return bytes(await call(b"by gRPC")).decode()


async def tartlet_client(_: str) -> str:
    """Run another program of the same server."""
    async with tartlet.AsyncClient() as client:
        ended = await (
            await client.run(tartlet.Source.python("async def main(args): return args[0]"), ["inner"])
        ).wait()
    return str(ended.result)


async def threads(port: str) -> str:
    """Run a loop in a thread, which uses the network and calls back into the program's loop."""
    loop = asyncio.get_running_loop()

    async def ask() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"ping\n")
        answer = (await reader.readline()).decode().strip()
        writer.close()
        return answer

    async def generate() -> int:
        async with Context() as ctx:
            ctx.fill("hello")
            return len(await ctx.generate_until(max_tokens=4))

    found: dict[str, Any] = {}
    done = asyncio.Event()

    def work() -> None:
        found["asked"] = asyncio.run(ask())
        found["generated"] = asyncio.run_coroutine_threadsafe(generate(), loop).result(20)
        try:
            send("from another thread")
        except RuntimeError as error:
            found["refused"] = type(error).__name__
        loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=work)
    thread.start()
    await done.wait()
    thread.join()
    asked = await asyncio.to_thread(_blocking, int(port))
    return f"{found['asked']} {found['generated']} {found['refused']} {asked}"


def _blocking(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"ping\n")
        return connection.recv(100).decode().strip()


async def silence(_: str) -> str:
    """Wait for a socket that never says anything."""
    ours, _theirs = socket.socketpair()
    ours.setblocking(False)
    send("waiting")
    return (await asyncio.get_running_loop().sock_recv(ours, 1)).decode()


async def plain(_: str) -> str:
    """Use timers, tasks and contexts, and fail at the end."""

    async def generate(delay_s: float) -> int:
        async with Context() as ctx:
            ctx.fill("hello")
            await asyncio.sleep(delay_s)
            for _ in range(300):  # busy turns
                await asyncio.sleep(0)
            return len(await ctx.generate_until(max_tokens=8))

    counts = await asyncio.gather(generate(0), generate(0.02))
    raise ValueError(f"{sum(counts)} tokens, as wanted")


async def waits(_: str) -> str:
    """Wait for what can't come: neither the host nor a socket nor a thread will end it."""
    await asyncio.to_thread(str)  # its thread stays, idle
    await asyncio.Event().wait()
    return ""


async def main(args: list[str]) -> str:
    kinds = {each.__name__: each for each in (streams, serves, processes, httpx_client, aiohttp_client, grpc_client)}
    kinds |= {each.__name__: each for each in (tartlet_client, threads, silence, plain, waits)}
    return await kinds[args[0]](args[1] if len(args) > 1 else "")
