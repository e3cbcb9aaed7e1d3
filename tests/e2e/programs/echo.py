"""Answers messages until it is told to stop; never touches an engine."""

from __future__ import annotations

import inferlet


async def main() -> str:
    inferlet.send("ready\n")
    count = 0
    while (message := await inferlet.receive()) != "stop":
        count += 1
        inferlet.send(f"echo {message}\n")
    return f"answered {count}"
