"""Long-lived connections while the files of every identity are replaced."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

import tartlet
from tartlet_common.errors.registry import Unavailable
from tartlet_operator.control.link import ControlLink
from tartlet_protos import control_pb2
from tests.e2e.cluster import cluster
from tests.e2e.serving import message, program


async def now(link: ControlLink) -> control_pb2.EnginesReply:
    async with contextlib.aclosing(link.engines(60.0)) as replies:
        return await anext(replies)


async def test_a_watch_ends_when_there_are_new_certificates_and_the_next_one_uses_them(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=0) as made:
        link = ControlLink(made.control, made.identity("operator"))
        async with asyncio.timeout(60):
            heard = 0
            async for reply in link.engines(0.1):
                assert reply.incarnation
                heard += 1
                if heard == 3:
                    made.rotate()
            assert heard >= 3
            assert (await now(link)).incarnation
            made.roles["control"].kill()
            with pytest.raises(Unavailable):
                await now(link)
        await link.close()


async def test_new_calls_use_new_certificates_while_streams_continue(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=1) as made:
        tls = made.identity("operator")
        link = ControlLink(made.control, tls)
        async with asyncio.timeout(90), tartlet.AsyncClient(made.runtimes[0], tls=tls) as client:
            before = (await now(link)).incarnation
            run = await client.run(program("echo"))
            output = aiter(run)
            assert await message(output) == "ready\n"
            made.rotate()
            await client.send(run.program_id, "sent over the new connection")
            assert "sent over the new connection" in await message(output)
            run.cancel()
            made.roles["control"].kill()  # its connections end; the next one shows a certificate of the new authority
            made.start_control().until_readyz(200)
            assert (await now(link)).incarnation != before
            made.roles["runtime0"].until_readyz(200)
            assert (await client.state()).control["incarnation"] != before
        await link.close()


async def test_files_that_cannot_be_read_leave_the_connection_as_it_was(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=0) as made:
        tls = made.identity("operator")
        link = ControlLink(made.control, tls)
        async with asyncio.timeout(60):
            await now(link)
            tls.key.rename(tls.key.with_suffix(".away"))
            assert (await now(link)).incarnation
            tls.key.write_text("no key")
            with contextlib.suppress(Unavailable):  # nobody can speak TLS with that
                await now(link)
            tls.key.with_suffix(".away").replace(tls.key)
            assert (await now(link)).incarnation
        await link.close()
