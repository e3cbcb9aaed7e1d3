"""The generic Python inferlet: a component that runs the source it is given.

componentize-py imports this module at build time and snapshots the interpreter, so what is imported here costs a
program nothing, and what is not imported here does not exist for it. Nothing may draw randomness or read a clock at
import: that would be frozen into every instance.
"""

from __future__ import annotations

# What programs may import.
import abc, array, ast, bisect, cmath, collections, collections.abc, copy, dataclasses, enum, functools  # noqa: E401, F401
import asyncio, concurrent.futures, contextlib, contextvars, queue, sched, threading  # noqa: E401, F401
import argparse, getopt, inspect, linecache, logging, operator, os, pathlib, platform, shlex, sys, traceback  # noqa: E401, F401
import base64, binascii, codecs, csv, hashlib, hmac, html, html.parser, io, json, pickle, struct, zlib  # noqa: E401, F401
import calendar, datetime, decimal, fractions, math, numbers, random, secrets, statistics, time, timeit, uuid  # noqa: E401, F401
import difflib, email.utils, fnmatch, glob, keyword, locale, pprint, re, reprlib, string, stringprep, textwrap  # noqa: E401, F401
import errno, gc, graphlib, heapq, itertools, shutil, signal, socket, tempfile, token, tokenize, types, typing  # noqa: E401, F401
import unicodedata, unittest, urllib.parse, warnings, weakref, xml.etree.ElementTree, zipfile, zoneinfo  # noqa: E401, F401
import configparser, email.message, email.parser, ipaddress, mimetypes, tomllib  # noqa: E401, F401
import encodings.ascii, encodings.cp437, encodings.idna, encodings.latin_1, encodings.utf_16, encodings.utf_8  # noqa: E401, F401

import importlib
import pkgutil

import wit_world
from componentize_py_types import Err
from host_backend import WitBackend

import inferlet
import inferlet._running.guest
import inferlet._wire.host
import inferlet._hints.sandbox

_OUTSIDE_ONLY = {"inferlet._running.native", "inferlet._running.native_loop"}  # run a program without the sandbox

for _package in (importlib, zipfile):  # their parts are imported when they are needed first
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        if not _module.name.endswith("__main__"):
            importlib.import_module(_module.name)

for _module in pkgutil.walk_packages(inferlet.__path__, "inferlet."):
    if _module.name not in _OUTSIDE_ONLY:
        importlib.import_module(_module.name)


# The processor's time would be counted from when the snapshot was taken.
time.process_time, time.process_time_ns = time.perf_counter, time.perf_counter_ns
sys.breakpointhook = inferlet._hints.sandbox.no_breakpoint  # noqa: SLF001 - the seam that the SDK keeps for its hosts


class _Silence:
    """The host while the snapshot is taken."""

    def submit(self, data: bytes) -> None:
        """Nobody listens."""

    def wait(self, max_records: int, timeout_us: int) -> bytes:
        """An empty delivery: a header of ABI version 1."""
        return b"\x01" + bytes(15)


_WARM_UP = """
import asyncio
from inferlet import send
async def main(args):
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
    send("warm")
    print(end="")
"""


def _warm_up() -> None:
    """Run a program that does nothing, unheard."""
    inferlet._wire.host.backend = _Silence()  # noqa: SLF001 - the seam that the SDK keeps for its hosts
    inferlet._running.guest.run(_WARM_UP, "warm_up.py", ["--warm", "up"])  # noqa: SLF001 - the same
    inferlet._wire.host.backend = WitBackend()  # noqa: SLF001 - the same
    linecache.clearcache()


for _ in range(3):  # every program starts with the interpreter's caches warm
    _warm_up()


def _fill_holes() -> list[bytes]:
    """Use up the free memory between the objects of the snapshot; keep the result.

    Every instance shares the snapshot's pages until it writes to them. Its new objects would lie in holes all over
    those pages, and each would cost a page fault and a copy; behind them they lie side by side.
    """
    kept: list[bytes] = []
    highest = 0
    for size in (1 << 18, 1 << 16, 1 << 14, 1 << 12, 1 << 11, 1 << 10, *range(768, 31, -16)):
        behind = 0
        while behind < 8:
            filler = bytes(size - sys.getsizeof(b""))
            kept.append(filler)
            behind = behind + 1 if id(filler) > highest else 0
            highest = max(highest, id(filler))
    for _ in range(20_000):  # the smallest size; floats, because `bytes` are larger
        kept.append(float(len(kept)))  # type: ignore[arg-type]
    return kept


gc.collect()
# What is alive now stays out of garbage collections, which would write to every page that holds an object.
gc.freeze()
_ballast = _fill_holes()


def _lost_an_operand(error: BaseException) -> bool:
    """Whether a `+` of strings got no memory: CPython 3.14.0 frees them then, and their types have no names."""
    return isinstance(error, TypeError) and "operand type(s) for +" in str(error) and ": ''" in str(error)


def _whole(text: str, errors: str) -> str:
    """Text without halves of characters, which can't leave."""
    return text.encode(errors=errors).decode()


class WitWorld(wit_world.WitWorld):
    """The exports of the world `tartlet:inferlet/inferlet`."""

    def prepare(self) -> None:
        """Touch what a run touches: the host may do this ahead of time, and a page written once costs no more."""
        json.loads('["warm", "up"]')
        _warm_up()
        inferlet._running.guest.prepare()  # noqa: SLF001 - the seam that the SDK keeps for its hosts
        WitBackend().submit(bytes(64))  # the host takes nothing before `run`

    def run(self, source: str, filename: str, args: str, code: str) -> str:
        """Run a program to its end; "" if it returns None, and a failure leaves as `Err` with its traceback."""
        try:
            compiled = code.encode("latin-1")
            result = inferlet._running.guest.run(source, filename, json.loads(args), compiled)  # noqa: SLF001 - the same
            return "" if result is None else _whole(result, "replace")
        except BaseException as e:  # noqa: BLE001 - whatever a program raises is its result
            if isinstance(e, MemoryError) or _lost_an_operand(e):
                raise Err("MemoryError") from None  # there may be none to say more, and the host knows what it means
            text = getattr(e, "guest_traceback", None) or traceback.format_exc()
            raise Err(_whole(text, "backslashreplace")) from None
