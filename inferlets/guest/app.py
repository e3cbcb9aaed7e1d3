"""The generic Python inferlet: a component that runs the source it is given.

componentize-py imports this module at build time and snapshots the interpreter, so whatever is imported here costs a
program nothing. Nothing may draw randomness or read a clock at import: it would be frozen into every instance.
"""

from __future__ import annotations

# What users may import. A module that is not imported here does not exist in the sandbox.
import abc, array, ast, asyncio, base64, binascii, bisect, calendar, cmath, codecs, collections, collections.abc  # noqa: E401, F401
import contextlib, contextvars, copy, csv, dataclasses, datetime, decimal, difflib, email.utils, enum, fnmatch  # noqa: E401, F401
import fractions, functools, gc, graphlib, hashlib, heapq, hmac, html, html.parser, inspect, io, itertools, json  # noqa: E401, F401
import keyword, linecache, locale, logging, math, numbers, operator, os, pathlib, pprint, queue, random, re  # noqa: E401, F401
import reprlib, secrets, shlex, statistics, string, struct, sys, tempfile, textwrap, threading, time, timeit  # noqa: E401, F401
import token, tokenize, traceback, types, typing, unicodedata, unittest, urllib.parse, uuid, warnings, weakref  # noqa: E401, F401
import xml.etree.ElementTree, zlib, zoneinfo, argparse, socket  # noqa: E401, F401

import encodings.idna, encodings.latin_1, encodings.utf_8, encodings.ascii  # noqa: E401, F401

import wit_world
from componentize_py_types import Err
from host_backend import WitBackend

import inferlet._guest
import inferlet._host

inferlet._host.backend = WitBackend()  # noqa: SLF001


class WitWorld(wit_world.WitWorld):
    """The exports of the world `tartlet:inferlet/inferlet`."""

    def run(self, source: str, filename: str, args: str) -> str:
        """Run a program to its end; a failure leaves as `Err` with its traceback."""
        try:
            return inferlet._guest.run(source, filename, json.loads(args))  # noqa: SLF001
        except BaseException as e:  # noqa: BLE001 - whatever a program raises is its result
            text = getattr(e, "guest_traceback", None) or traceback.format_exc()
            raise Err(text) from None
