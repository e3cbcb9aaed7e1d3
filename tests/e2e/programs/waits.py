"""Waits without end."""

from __future__ import annotations

import asyncio

import inferlet


async def main() -> None:
    inferlet.send("waiting\n")
    await asyncio.sleep(3600)
