"""The client: launches programs on a Tartlet server and talks to them while they run.

Users import from here. `tartlet.local` starts roles as child processes; this package never imports a role, and an
import of it never starts anything.

Example:
    ::

        import asyncio

        import tartlet


        async def main() -> None:
            async with tartlet.AsyncClient() as client:  # a local `tartlet serve`
                run = await client.run(tartlet.Source.from_file("hello.py"))
                async for event in run:
                    print(event)


        asyncio.run(main())
"""

from __future__ import annotations

from tartlet.client import AsyncClient, Run
from tartlet.events import Accepted, Ended, Event, Message, Stderr, Stdout, Usage
from tartlet.model import (
    MAX_SOURCE_BYTES,
    Capabilities,
    CatalogueEntry,
    Fork,
    Language,
    LaunchSpec,
    Limits,
    ProgramInfo,
    RuntimeState,
    Source,
)
from tartlet.sync import Client, SyncRun
from tartlet_common.errors.registry import TartletError
from tartlet_common.pauses import Pause
from tartlet_common.rpc.endpoints import Tls

__all__ = [
    "MAX_SOURCE_BYTES",
    "Accepted",
    "AsyncClient",
    "Capabilities",
    "CatalogueEntry",
    "Client",
    "Ended",
    "Event",
    "Fork",
    "Language",
    "LaunchSpec",
    "Limits",
    "Message",
    "Pause",
    "ProgramInfo",
    "Run",
    "RuntimeState",
    "Source",
    "Stderr",
    "Stdout",
    "SyncRun",
    "TartletError",
    "Tls",
    "Usage",
]
