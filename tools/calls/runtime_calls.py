"""Calls that the runtime answers."""

from __future__ import annotations

from typing import Any, Final

from tartlet_common.abi import Op
from tools.calls.layout import Answers, By, Call, Layout, args

MESSAGE: Final = Layout("message", args("message: bytes"), ("#message", "message"))
"""A message that a program gives back to its next run (CONTINUE)."""


def _call(op: Op, arguments: str, payload: str = "", **more: Any) -> Call:
    more = {"answers": Answers.IF_AWAITED, "trait": "Core", **more}
    return Call(op.name.lower(), args(arguments), tuple(payload.split()), op=op, by=By.RUNTIME, **more)


_MODEL: Final = "model: u32, the model's index"
_CHILD: Final = "child: u32, the child's number"
RUNTIME_CALLS: Final = (
    _call(
        Op.LOG,
        "stream: u32, 1 for stdout, 2 for stderr\ntext: bytes",
        "text",
        a="stream",
        answers=Answers.NEVER,
        trait="Output",
        sdk="print",
        errors=("OutputTooLarge",),
    ),
    _call(
        Op.SEND, "message: bytes", "message", answers=Answers.NEVER, errors=("OutputTooLarge",), section="4.3, Table 1"
    ),
    _call(Op.RECEIVE, "", answer="message", section="4.3, Table 1"),
    _call(Op.GET_ARG, "", answer="JSON list of texts", section="Table 1"),
    _call(
        Op.AVAILABLE_MODELS,
        "traits: JSON, list of traits that a model must have, or nothing",
        "traits",
        answer="JSON list of names",
        section="4.4, Table 1",
        errors=("InvalidArgument",),
    ),
    _call(
        Op.GET_MODEL,
        "name: UTF-8, empty for the default",
        "name",
        answer="JSON",
        errors=("UnknownModel", "InvalidArgument"),
    ),
    _call(
        Op.TOKENIZE,
        f"{_MODEL}\nspecial: bool, add the model's special tokens\ntext: UTF-8",
        "text",
        a="model",
        b="special",
        trait="Tokenize",
        answer="u32[tokens]",
        section="Table 1",
        errors=("UnknownModel", "InvalidArgument", "UnsupportedTrait"),
    ),
    _call(
        Op.DETOKENIZE,
        f"{_MODEL}\nspecial: bool, show special tokens\ntokens: u32[], [tokens] ids",
        "tokens",
        a="model",
        b="special",
        trait="Tokenize",
        answer="bytes",
        section="Table 1",
        errors=("UnknownModel", "InvalidArgument", "UnsupportedTrait"),
    ),
    _call(
        Op.GET_VOCABS,
        f"{_MODEL}\nfirst: u32, the first token\ncount: u32, how many, 0 for the rest",
        a="model",
        b="first",
        c="count",
        trait="Tokenize",
        answer="u32 n, u32[n] lengths, bytes",
        section="Table 1",
        errors=("UnknownModel", "InvalidArgument", "UnsupportedTrait"),
    ),
    _call(
        Op.FORMAT_CHAT,
        f"{_MODEL}\ntokens: bool, answer the text's tokens as well\nchat: JSON, messages, add_generation_prompt, tools",
        "chat",
        a="model",
        b="tokens",
        trait="Tokenize",
        answer="UTF-8; with tokens: u32 n, u32[n], UTF-8",
        errors=("UnknownModel", "InvalidArgument", "UnsupportedTrait"),
    ),
    _call(Op.GET_VERSION, "", answer="UTF-8", section="4"),
    _call(Op.GET_INSTANCE_ID, "", answer="UTF-8", section="4"),
    _call(Op.PROMPT_TEMPLATE, _MODEL, a="model", trait="Model", answer="UTF-8", section="4", errors=("UnknownModel",)),
    _call(
        Op.CONTINUE,
        "arguments: JSON, list of texts\ngiven_back: bytes, each message as u32 length and bytes",
        "arguments given_back",
        a="#arguments",
        answers=Answers.NEVER,
        trait="Lifetime",
        sdk="continue_as_new",
        errors=("InvalidArgument",),
    ),
    _call(
        Op.GET_ALL_ADAPTERS,
        _MODEL,
        a="model",
        trait="Adapter",
        answer="JSON list of name, number, rank, digest",
        section="4.4",
        errors=("UnknownModel",),
    ),
    _call(
        Op.HTTP_REQUEST,
        "number: u32, the request's new number\nwanted: u32, bytes of the reply's body to wait for"
        "\nhead: JSON\nbody: bytes",
        "head body",
        a="#head",
        b="number",
        c="wanted",
        answers=Answers.ALWAYS,
        trait="HTTP",
        answer="JSON, bytes",
        section="4.3, Table 1",
        errors=(
            "InvalidArgument",
            "ResourceInUse",
            "ResourceQuotaExceeded",
            "NotAllowed",
            "RequestFailed",
            "BodyTooLarge",
            "Interrupted",
        ),
    ),
    _call(
        Op.HTTP_READ,
        "number: u32, the request\nmost: u32, at most so many bytes, 0 for 64 KiB\nwhole: bool, wait for all of them",
        a="most",
        b="number",
        c="whole",
        answers=Answers.ALWAYS,
        trait="HTTP",
        answer="bytes",
        sdk="HttpStream.read",
        errors=("InvalidArgument", "UnknownResource", "ResourceInUse", "RequestFailed", "BodyTooLarge", "Interrupted"),
    ),
    _call(
        Op.HTTP_CLOSE,
        "number: u32, the request",
        b="number",
        answers=Answers.NEVER,
        trait="HTTP",
        sdk="HttpStream.close",
    ),
    _call(
        Op.SPAWN,
        "child: u32, the child's new number\nasked: JSON",
        "asked",
        a="child",
        answers=Answers.ALWAYS,
        trait="Children",
        answer="u32 child; UTF-8 id",
        errors=(
            "InvalidArgument",
            "ResourceInUse",
            "ResourceQuotaExceeded",
            "NotAllowed",
            "UnknownInferlet",
            "UnknownModel",
            "Unavailable",
            "Overloaded",
            "ParentEnded",
        ),
    ),
    _call(
        Op.CHILD_SEND,
        f"{_CHILD}\nmessage: bytes",
        "message",
        a="child",
        answers=Answers.ALWAYS,
        trait="Children",
        sdk="Child.send",
        errors=("InvalidArgument", "UnknownResource", "UnknownProgram", "Unavailable", "InboxFull"),
    ),
    _call(
        Op.CHILD_NEXT,
        f"{_CHILD}\noffset: u32, of the last answer, at first 0",
        a="child",
        b="offset",
        answers=Answers.ALWAYS,
        trait="Children",
        sdk="Child.result",
        answer="u32 event, u32 offset; bytes",
        errors=("InvalidArgument", "UnknownResource", "ResourceInUse", "UnknownProgram", "Unavailable"),
    ),
    _call(
        Op.CHILD_KILL,
        f"{_CHILD}\nreason: UTF-8",
        "reason",
        a="child",
        answers=Answers.ALWAYS,
        trait="Children",
        sdk="Child.kill",
        errors=("InvalidArgument", "UnknownResource", "UnknownProgram", "Unavailable"),
    ),
)
