"""Finds and loads the compiled kernels, and declares the structures that they take."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt

SOURCES = ("decoder.c", "attention.h", "attention_amx.h", "gemm.h", "sampling.h", "simd.h")
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu11")
MAX_GROUP = 32
"""Query heads that may share one key head (MAX_GROUP of attention.h)."""
NEEDED_CPU_FLAGS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"})


class CMatrix(ctypes.Structure):
    """`Matrix` of gemm.h: a packed weight."""

    _fields_ = (("w", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("n", ctypes.c_int64), ("k", ctypes.c_int64))


class CLayer(ctypes.Structure):
    """`Layer` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input_norm", "q_norm", "k_norm", "post_norm")),
        *((name, CMatrix) for name in ("qkv", "out", "gate_up", "down")),
        ("window", ctypes.c_int64),
    )


class CModel(ctypes.Structure):
    """`Model` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("dim", "layers", "heads", "kv_heads", "hd", "page_size")),
        *((name, ctypes.c_int64) for name in ("kv_layer", "kv_half")),
        ("eps", ctypes.c_float),
        ("layer", ctypes.POINTER(CLayer)),
        ("final_norm", ctypes.c_void_p),
    )


class CPass(ctypes.Structure):
    """`Pass` of decoder.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("tokens", "commands", "width", "most", "outs")),
        *((name, ctypes.c_void_p) for name in ("x", "cos", "sin", "row", "kv")),
        *((name, ctypes.c_void_p) for name in ("indptr", "at", "pages", "num_pages", "position", "allowed")),
        *((name, ctypes.c_void_p) for name in ("out_token", "out")),
    )


def cpu_flags() -> frozenset[str]:
    """Return the features of this machine's CPU; empty if the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def folder() -> Path:
    """Return the folder of compiled kernels: TARTLET_KERNELS_DIR, else one in the user's cache."""
    given = os.environ.get("TARTLET_KERNELS_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tartlet" / "kernels"


def file() -> Path:
    """Return the path of the library for these sources, flags and this CPU. The file may not exist."""
    here = Path(__file__).parent
    key = hashlib.sha256("\0".join([*FLAGS, platform.machine(), *sorted(cpu_flags())]).encode())
    for name in SOURCES:
        key.update((here / name).read_bytes())
    return folder() / f"decoder-{key.hexdigest()[:16]}.so"


def address(values: npt.NDArray[Any]) -> int:
    """Return the address of an array's values; `values.ctypes.data` takes three times as long."""
    return int(values.__array_interface__["data"][0])


def available() -> bool:
    """Return whether the kernels are built and this CPU can run them."""
    return library() is not None


@cache
def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    loaded.kernels_init(1)
    loaded.pack_weights.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    loaded.linear.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
    )
    loaded.row_stats.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    loaded.kernels_scratch.restype = ctypes.c_int64
    rows = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    loaded.top_rows.argtypes = (*rows, ctypes.c_int64, ctypes.c_void_p)
    loaded.draw_rows.argtypes = (*rows, *(ctypes.c_void_p,) * 7)
    loaded.decoder_run.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    pointer, long, number = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
    signature = (pointer,) * 4 + (long,) + (pointer,) * 3 + (long,) * 2 + (pointer,) * 3
    for name in ("attend_bf16", "attend_f32"):
        getattr(loaded, name).argtypes = (*signature, ctypes.c_int32, number, number, number, number, ctypes.c_float)
    for name in ("attend_bf16", "attend_f32", "decoder_run", "linear", "top_rows", "draw_rows"):
        getattr(loaded, name).errcheck = _checked
    return loaded


def _checked(status: int, *_: object) -> int:
    if status:
        raise MemoryError("no memory for a kernel's intermediate values")
    return status


def library() -> ctypes.CDLL | None:
    """Return the loaded kernels, or None if they are not built or this CPU can't run them.

    Calls release the interpreter's lock. The kernels have their own scratch memory, so only one thread at a time may
    call them. A kernel that gets no scratch memory raises `MemoryError`.
    """
    if not cpu_flags() >= NEEDED_CPU_FLAGS:
        return None
    path = file()
    return _load(path) if path.is_file() else None
