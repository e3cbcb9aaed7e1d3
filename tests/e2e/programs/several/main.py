"""A program of several files: two packages, one with data, and a failure in one of them if asked for."""

from __future__ import annotations

from abilities import calculator
from agent.answering import answer

from inferlet import send


async def main(args: list[str]) -> str:
    send(__file__)
    told = await answer(args[0])
    if args[1:] == ["fail"]:
        calculator.add("1", None)
    return told
