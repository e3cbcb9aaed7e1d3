"""Fails with its own traceback."""

from __future__ import annotations


def inner(table: dict[str, str]) -> str:
    return table["missing"]


async def main() -> str:
    print("before")  # noqa: T201 - a program prints
    return inner({})
