"""Connections for long, when the files of every identity are replaced beneath them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import tartlet
from tartlet_common.errors import Unavailable
from tartlet_operator.control_link import ControlLink
from tests.e2e.cluster import cluster
from tests.e2e.serving import message, program


async def test_new_calls_go_out_with_the_new_certificates_while_streams_go_on(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=1) as made:
        tls = made.identity("operator")
        link = ControlLink(made.control, tls)
        async with asyncio.timeout(90), tartlet.AsyncClient(made.runtimes[0], tls=tls) as client:
            before = (await link.state())["incarnation"]
            run = await client.run(program("echo"))
            output = aiter(run)
            assert await message(output) == "ready\n"
            made.rotate()
            await client.send(run.program_id, "sent over the new connection")
            assert "sent over the new connection" in await message(output)
            run.cancel()
            made.roles["control"].kill()  # its connections end; the next one shows a certificate of the new authority
            made.start_control().until_readyz(200)
            assert (await link.state())["incarnation"] != before
            made.roles["runtime0"].until_readyz(200)
            assert (await client.state()).control["incarnation"] != before
        await link.close()


async def test_files_that_cannot_be_read_leave_the_connection_as_it_was(run_dir: Path) -> None:
    with cluster(run_dir, runtimes=0) as made:
        tls = made.identity("operator")
        link = ControlLink(made.control, tls)
        async with asyncio.timeout(60):
            await link.state()
            tls.key.rename(tls.key.with_suffix(".away"))
            assert (await link.state())["engines"] is not None
            tls.key.write_text("no key")
            with contextlib.suppress(Unavailable):  # nobody can speak TLS with that
                await link.state()
            tls.key.with_suffix(".away").replace(tls.key)
            assert (await link.state())["engines"] is not None
        await link.close()
