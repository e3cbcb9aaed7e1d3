"""Counts in the tenant's store, one after the other, and returns the count and what each write said."""

from __future__ import annotations

import asyncio
import sys

import inferlet


async def main() -> str:
    said = []
    for n in range(int(sys.argv[1])):
        value = await inferlet.store_get("count")
        said.append(await inferlet.store_set("count", str(int(value or 0) + 1)))
        await inferlet.store_set(f"mark {n}", "x")
        said.append(await inferlet.store_delete(f"mark {n}"))
        inferlet.send(str(n))
        await asyncio.sleep(0.02)
    return f"{await inferlet.store_get('count')} {''.join('01'[bool(each)] for each in said)}"
