"""Answers programs like `bench/guests/wanderer.py` to their ends, and prints what it heard and how they ended.

Run in a pod, from the source alone. The environment names the runtimes (`RUNTIMES`, `DOMAIN`), the programs
(`PROGRAMS`, a JSON list of ids) and their number of rounds (`ROUNDS`). The file `/tmp/allowed` says how many rounds may
end; these end after pauses, unless all may. Standard output has `Heard` as JSON, one line a second; the last line is
the final one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, TypedDict

import tartlet
from tartlet_common.rpc.endpoints import Tls

ALLOWED: Final = Path("/tmp/allowed")  # noqa: S108 - the pod's own
TLS: Final = Path("/etc/tartlet/tls")
PAUSE_S: Final = (1.0, 4.0)
"""Least and most time between two rounds of a program, in seconds."""
PATIENCE_S: Final = 120.0
"""For how long a broken connection is taken up again."""


class Heard(TypedDict):
    """What the tool heard."""

    calls: int
    repeated: list[str]
    """Calls that were heard twice: the program's id and the line."""
    ended: dict[str, str]
    """Results of the ended programs, or their errors, by id."""


class Tool:
    """Answers all programs; each asks for one thing at a time."""

    def __init__(self, client: tartlet.AsyncClient, rounds: int) -> None:
        self._client, self._rounds = client, rounds
        self._lines: Counter[tuple[str, str]] = Counter()
        self._ended: dict[str, str] = {}

    def heard(self) -> Heard:
        """Returns what was heard so far."""
        repeated = [f"{program} {line}" for (program, line), count in self._lines.items() if count > 1]
        return {"calls": self._lines.total(), "repeated": repeated, "ended": self._ended}

    async def follow(self, program_id: str) -> None:
        """Answers a program until it ends."""
        try:
            run = await self._client.attach(program_id)
            async for event in run:
                if isinstance(event, tartlet.Message):
                    for line in event.text.splitlines():
                        await self._answer(program_id, line)
                elif isinstance(event, tartlet.Ended):
                    self._ended[program_id] = repr(event.error) if event.error else event.result or ""
        except tartlet.TartletError as e:
            self._ended[program_id] = f"not followed: {e!r}"

    async def _answer(self, program_id: str, line: str) -> None:
        self._lines[program_id, line] += 1
        kind, number, *rest = line.split()
        if kind == "call":
            await self._client.send(program_id, f"tool answer {number} {' '.join(rest)}")
            return
        end_s = time.monotonic() + random.uniform(*PAUSE_S)  # noqa: S311 - only spreads them
        while self._waits(int(number), end_s):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.1)
        await self._client.send(program_id, f"message {number}")

    def _waits(self, number: int, end_s: float) -> bool:
        """Whether a round may not end yet, which would have its pause until `end_s`."""
        allowed = rounds_allowed()
        return allowed < self._rounds and (number >= allowed or time.monotonic() < end_s)


def rounds_allowed() -> int:
    """Returns how many rounds may end."""
    text = ALLOWED.read_text() if ALLOWED.exists() else ""
    return int(text or "0")  # empty while it is being written


def tell(heard: Heard) -> None:
    """Writes a line."""
    sys.stdout.write(f"{json.dumps(heard)}\n")
    sys.stdout.flush()


async def main() -> None:
    """Follows all programs."""
    env = os.environ
    tls = Tls(TLS / "tls.crt", TLS / "tls.key", TLS / "ca.crt", env["DOMAIN"])
    async with tartlet.AsyncClient(env["RUNTIMES"], tls=tls, retry_s=PATIENCE_S) as client:
        tool = Tool(client, int(env["ROUNDS"]))
        following = asyncio.gather(*(tool.follow(program) for program in json.loads(env["PROGRAMS"])))
        while not following.done():
            tell(tool.heard())
            await asyncio.wait((following,), timeout=1.0)
        await following
        tell(tool.heard())


if __name__ == "__main__":
    asyncio.run(main())
