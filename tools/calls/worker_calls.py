"""Calls that the worker answers."""

from __future__ import annotations

from typing import Any, Final

from tartlet_common.abi import Op
from tools.calls.layout import Answers, By, Call, Layout, args

SAMPLE_PARAMS: Final = Layout(
    "sample_params",
    args(
        """
        temperature: f32, 0 is greedy
        top_k: u32, 0 is off
        top_p: f32, 1 is off
        min_p: f32, 0 is off
        seed: u64
        draw: u32
        stop: u32[], [n] stop tokens
        options: bytes, sample_options, or nothing
        """
    ),
    ("temperature", "top_k", "top_p", "min_p", "seed", "draw", "#stop", "stop", "options"),
)
"""How a SAMPLE samples."""
SAMPLE_OPTIONS: Final = Layout(
    "sample_options",
    args(
        """
        flags: u32, bits of SampleFlag
        top: u32, log-probabilities asked for
        bias: u32[], [n] tokens
        biases: f32[], [n] values
        allowed: u32[], [n] tokens, or words of bits
        named: u32[], [n] tokens whose log-probability is asked for
        prompt: u32[], [n] distinct tokens of the prompt
        output: u32[], [n] tokens of the output
        repetition: f32
        frequency: f32
        presence: f32
        grammar: bytes, sample_grammar, or nothing
        """
    ),
    (
        *("flags", "top", "#bias", "#allowed", "#named", "#prompt", "#output", "repetition", "frequency", "presence"),
        *("bias", "biases", "allowed", "named", "prompt", "output", "grammar"),
    ),
)
"""The options behind the stop tokens of a SAMPLE."""
SAMPLE_GRAMMAR: Final = Layout(
    "sample_grammar",
    args("grammar: u32, its id, 0 for the one that the slot follows\nmatched: u32[], [n] tokens that the text has"),
    ("grammar", "matched"),
)
"""What the options of a SAMPLE say of a grammar."""


def _call(op: Op, arguments: str, payload: str = "", **more: Any) -> Call:
    more = {"answers": Answers.IF_AWAITED, "queue": True, **more}
    return Call(op.name.lower(), args(arguments), tuple(payload.split()), op=op, by=By.WORKER, **more)


_COMPUTES: Final = ("UnknownResource", "InvalidArgument", "EmbedLost", "WorkerLost", "EngineFailure")
WORKER_CALLS: Final = (
    _call(
        Op.EMBED_TXT,
        "from_slots: bool, sources are token slots\nembeds: u32[], [n]\nsources: u32[], [n] tokens or slots"
        "\npositions: u32[], [n]",
        "embeds sources positions",
        a="#embeds",
        b="from_slots",
        trait="InputText",
        section="4.1, Table 1",
        errors=(*_COMPUTES, "ContextTooLong"),
    ),
    _call(
        Op.FORWARD,
        "okv_offset: u32, the first slot written\nadapter: u32, a LoRA adapter, 0 for none\nikv: u32[], [pages read]"
        "\niemb: u32[], [tokens]\nokv: u32[], [pages written]\noemb: u32[], [outputs]"
        "\nmask: bits, [tokens][pages read x page size + tokens], 1 to see",
        "#ikv #iemb #okv #oemb ikv iemb okv oemb mask",
        a="okv_offset",
        b="adapter",
        c="?mask",
        trait="Forward",
        section="4.1, Table 1",
        errors=(*_COMPUTES, "ContextTooLong", "UnsupportedTrait", "UnknownAdapter"),
    ),
    _call(
        Op.COPY_KVPAGE,
        "src_offset: u32, the first slot read\ndst_offset: u32, the first slot written\nsize: u32, tokens"
        "\nsrc: u32, page\ndst: u32, page",
        "src dst",
        a="src_offset",
        b="dst_offset",
        c="size",
        trait="Allocate",
        section="4.1, Table 1",
        errors=_COMPUTES,
    ),
    _call(
        Op.MASK_KVPAGE,
        "page: u32\nbits: u32, bit i hides token i",
        a="page",
        b="bits",
        trait="Forward",
        section="4.1, Table 1",
        errors=_COMPUTES,
    ),
    _call(
        Op.GET_NEXT_DIST,
        "top_k: u32, tokens of each distribution, 0 for 256\nembeds: u32[], [n] outputs",
        "embeds",
        a="top_k",
        trait="OutputText",
        answer="u32 n, u32 k, u32[n, k] tokens, f32[n, k] probabilities",
        section="4.1, Table 1",
        errors=_COMPUTES,
    ),
    _call(
        Op.SAMPLE,
        "emb: u32, an output embed\nslot: u32, the token slot that is written\nparams: bytes, sample_params"
        "\nwith_bytes: bool, tell the token's bytes",
        "params",
        a="emb",
        b="slot",
        c="with_bytes",
        answers=Answers.ALWAYS,
        trait="OutputText",
        answer="u32 token, u32 1 if it ends, f32 log-probability; u32 n, u32[n] tokens, f32[n] log-probabilities,"
        " the token's bytes",
        errors=(*_COMPUTES, "UnsupportedTrait", "GrammarRefused"),
    ),
    _call(
        Op.FORWARD_TABLE,
        "table: u32\nstart: u32, the first slot written\nadapter: u32, a LoRA adapter, 0 for none"
        "\niemb: u32[], [tokens]\noemb: u32[], [outputs]\nmask: bits, [tokens][start + tokens], 1 to see",
        "#iemb #oemb adapter iemb oemb mask",
        a="table",
        b="start",
        c="?mask",
        trait="Tables",
        errors=(*_COMPUTES, "ContextTooLong", "UnsupportedTrait", "UnknownAdapter", "OutOfPages"),
    ),
    _call(
        Op.MASK_TABLE,
        "table: u32\nfirst: u32, slot\ncount: u32, slots\nwhat: u32, 0 shows, 1 hides, 2 drops",
        "what",
        a="table",
        b="first",
        c="count",
        trait="Tables",
        errors=(*_COMPUTES, "UnsupportedTrait", "OutOfPages"),
    ),
    _call(
        Op.COPY_TABLE,
        "table: u32\nfirst: u32, slot\nsize: u32, tokens\npage: u32\noffset: u32, the page's first slot"
        "\ninto: u32, 0 the page, 1 the table",
        "page offset into",
        a="table",
        b="first",
        c="size",
        trait="Tables",
        errors=(*_COMPUTES, "OutOfPages"),
    ),
)
