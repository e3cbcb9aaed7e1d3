"""Vectors of the calls that the worker answers."""

from __future__ import annotations

from typing import Any

from tartlet_common.abi import MaskWhat, Op, SampleFlag
from tools.calls.layout import payload
from tools.calls.vectors.form import Vector, submission
from tools.calls.worker_calls import SAMPLE_GRAMMAR, SAMPLE_OPTIONS, SAMPLE_PARAMS

# Two tokens that see one page of four slots and themselves: 2 x 6 booleans, least significant bit first.
_MASK = [[True, False, True, True, True, False], [True, False, False, True, True, True]]
_BITS = bytes([0b01011101, 0b1110])
_NO_OPTIONS: dict[str, Any] = {
    "flags": 0, "top": 0, "bias": [], "biases": [], "allowed": [], "named": [], "prompt": [], "output": [],
    "repetition": 1.0, "frequency": 0.0, "presence": 0.0, "grammar": b"",
}  # fmt: skip
_GREEDY: dict[str, Any] = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "draw": 0, "stop": [],
}  # fmt: skip


def worker_vectors() -> list[Vector]:
    """Return the calls that compute."""
    pages: dict[str, Any] = {"ikv": [9], "iemb": [4, 5], "okv": [9], "oemb": [6]}
    embeds: dict[str, Any] = {"iemb": [4, 5], "oemb": [6]}
    return [
        submission(
            Op.EMBED_TXT,
            {"from_slots": 0, "embeds": [4, 5], "sources": [100, 70000], "positions": [10, 11]},
            tokens=[100, 70000],
            positions=[10, 11],
            embeds=[4, 5],
        ),
        submission(
            Op.EMBED_TXT,
            {"from_slots": 1, "embeds": [4], "sources": [1], "positions": [10]},
            "embed_txt_from_slot",
            slots=[1],
            positions=[10],
            embeds=[4],
        ),
        submission(Op.FORWARD, {"okv_offset": 3, "adapter": 0, **pages, "mask": None}, **pages, okv_offset=3),
        submission(
            Op.FORWARD,
            {"okv_offset": 0, "adapter": 7, **pages, "mask": _BITS},
            "forward_with_mask_and_adapter",
            **pages,
            mask=_MASK,
            adapter=7,
        ),
        submission(
            Op.FORWARD_TABLE,
            {"table": 5, "start": 70000, "adapter": 0, **embeds, "mask": None},
            table=5,
            start=70000,
            **embeds,
        ),
        submission(
            Op.FORWARD_TABLE,
            {"table": 5, "start": 4, "adapter": 7, **embeds, "mask": _BITS},
            "forward_table_with_mask_and_adapter",
            table=5,
            start=4,
            **embeds,
            mask=_MASK,
            adapter=7,
        ),
        submission(
            Op.COPY_KVPAGE,
            {"src_offset": 1, "dst_offset": 2, "size": 3, "src": 8, "dst": 9},
            src=8,
            dst=9,
            src_offset=1,
            dst_offset=2,
            size=3,
        ),
        submission(
            Op.COPY_TABLE,
            {"table": 5, "first": 6, "size": 2, "page": 9, "offset": 1, "into": 0},
            table=5,
            first=6,
            page=9,
            offset=1,
        ),
        submission(
            Op.COPY_TABLE,
            {"table": 5, "first": 4, "size": 3, "page": 9, "offset": 0, "into": 1},
            "copy_table_from_page",
            table=5,
            first=4,
            page=9,
            size=3,
            into="table",
        ),
        submission(Op.MASK_KVPAGE, {"page": 9, "bits": 0b1001}, page=9, mask=[True, False, False, True]),
        submission(Op.GET_NEXT_DIST, {"top_k": 5, "embeds": [6, 7]}, awaited=True, embeds=[6, 7], top_k=5),
    ]


def _sample(params: dict[str, Any]) -> dict[str, Any]:
    return {"emb": 6, "slot": 1, "params": payload(SAMPLE_PARAMS, params), "with_bytes": 0}


def sample_vectors() -> list[Vector]:
    """Return forms of `sample`: plain, with options, and with a grammar."""
    flags = int(SampleFlag.ALLOWED | SampleFlag.PENALTIES | SampleFlag.HISTORY)
    options = payload(
        SAMPLE_OPTIONS,
        {
            **_NO_OPTIONS, "flags": flags, "top": 4, "bias": [7, 9], "biases": [-100.0, 1.5], "allowed": [5, 9],
            "named": [11], "prompt": [1, 2], "output": [3], "repetition": 1.25, "frequency": 0.5, "presence": -0.5,
        },
    )  # fmt: skip
    grammar = payload(SAMPLE_GRAMMAR, {"grammar": 4, "matched": [123, 34]})
    following = payload(SAMPLE_OPTIONS, {**_NO_OPTIONS, "flags": int(SampleFlag.GRAMMAR), "grammar": grammar})
    sampling: dict[str, Any] = {
        "temperature": 0.5, "top_k": 40, "top_p": 0.75, "min_p": 0.125,
        "seed": 0x0123456789ABCDEF, "draw": 8, "stop": [2, 3],
    }  # fmt: skip
    return [
        submission(Op.SAMPLE, _sample({**sampling, "options": b""}), awaited=True, emb=6, slot=1, **sampling),
        submission(
            Op.SAMPLE,
            {**_sample({**sampling, "options": b""}), "with_bytes": 1},
            "sample_with_bytes",
            awaited=True,
            emb=6,
            slot=1,
            with_bytes=True,
            **sampling,
        ),
        submission(
            Op.SAMPLE,
            _sample({**_GREEDY, "options": options}),
            "sample_with_options",
            awaited=True,
            emb=6,
            slot=1,
            logit_bias=[[7, -100.0], [9, 1.5]],
            allowed=[5, 9],
            logprobs=4,
            logprobs_of=[11],
            repetition_penalty=1.25,
            frequency_penalty=0.5,
            presence_penalty=-0.5,
            history=[[1, 2], [3]],
        ),
        submission(
            Op.SAMPLE,
            _sample({**_GREEDY, "options": following}),
            "sample_with_grammar",
            awaited=True,
            emb=6,
            slot=1,
            grammar=4,
            matched=[123, 34],
        ),
    ]


def mask_vectors() -> list[Vector]:
    """Return what MASK_TABLE does with slots."""
    names = {MaskWhat.SHOW: "show", MaskWhat.HIDE: "hide", MaskWhat.DROP: "drop"}
    return [
        submission(
            Op.MASK_TABLE,
            {"table": 5, "first": 16, "count": 32, "what": int(what)},
            "" if what == MaskWhat.HIDE else f"mask_table_{name}",
            table=5,
            first=16,
            count=32,
            what=name,
        )
        for what, name in names.items()
    ]
