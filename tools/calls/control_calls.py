"""Calls that control answers."""

from __future__ import annotations

from typing import Any, Final

from tartlet_common.abi import QUEUED_OPS, Op
from tools.calls.layout import Answers, By, Call, args

_HOLD: Final = ("ResourceInUse", "ResourceQuotaExceeded", "PageQuotaExceeded", "ProgramTooLarge", "OutOfPages")


def _call(op: Op, arguments: str, payload: str = "", **more: Any) -> Call:
    by = By.CONTROL_QUEUE if op in QUEUED_OPS else By.CONTROL
    more = {"answers": Answers.IF_AWAITED, "queue": True, "trait": "Core", **more}
    return Call(op.name.lower(), args(arguments), tuple(payload.split()), op=op, by=by, **more)


def _ids(op: Op, what: str, section: str = "") -> Call:
    errors = (*_HOLD, "InvalidArgument") if op.name.startswith("ALLOC") else ("UnknownResource", "InvalidArgument")
    about = f"ids: u32[], [n] {what}"
    return _call(op, about, "ids", trait="Allocate", section=section, errors=errors)


def _shared(op: Op, arguments: str, payload: str = "", **more: Any) -> Call:
    store = op.name.startswith("STORE")
    errors = ("InvalidArgument", "Overloaded", "Unavailable") if store else ("InvalidArgument",)
    more = {"trait": "Store" if store else "Messages", "errors": errors, **more}
    return _call(op, arguments, payload, queue=False, **more)


_SUBSCRIPTION: Final = "number: u32, the subscription"
CONTROL_CALLS: Final = (
    _call(
        Op.CREATE_QUEUE,
        "model: u32, the model's index",
        a="model",
        answers=Answers.NEVER,
        section="Table 1",
        errors=("ResourceInUse", "ResourceQuotaExceeded", "UnknownModel"),
    ),
    _call(
        Op.SET_QUEUE_PRIORITY,
        "priority: u32, 0 low, 1 normal, 2 high",
        a="priority",
        answers=Answers.NEVER,
        section="Table 1",
        errors=("InvalidArgument",),
    ),
    _call(Op.SYNCHRONIZE, "", section="4.2, Table 1", errors=()),
    _call(Op.RESET, "", trait="Queues"),
    _call(Op.CANCEL, "since: u32, the first ticket to drop", a="since", trait="Queues", answer="u32 ticket, 0 if none"),
    _ids(Op.ALLOC_KVPAGE, "pages", "4.1, Table 1"),
    _ids(Op.DEALLOC_KVPAGE, "pages", "4.1, Table 1"),
    _ids(Op.ALLOC_EMB, "embeds", "4.1, Table 1"),
    _ids(Op.DEALLOC_EMB, "embeds", "4.1, Table 1"),
    _ids(Op.ALLOC_SLOT, "token slots"),
    _ids(Op.DEALLOC_SLOT, "token slots"),
    _call(Op.USAGE, "", queue=False, trait="Queues", answer="JSON"),
    _call(
        Op.TABLE,
        "table: u32, the table to set\nkeep_tokens: u32, slots of the source that stay"
        "\nnew_rows: u32, empty rows behind\nsource: u32[], one table, or none for the table itself",
        "source",
        a="table",
        b="keep_tokens",
        c="new_rows",
        trait="Tables",
        errors=(*_HOLD, "TenantOverShare", "UnknownResource", "InvalidArgument"),
    ),
    _call(
        Op.GRAMMAR,
        "grammar: u32, its new id, from 1\nkind: u32, 1 JSON schema, 2 regex, 3 Lark, 4 EBNF\ntext: UTF-8",
        "text",
        a="grammar",
        b="kind",
        trait="Grammar",
        sdk="alloc_grammar",
        errors=("InvalidArgument", "GrammarRefused", "UnsupportedTrait", "ResourceInUse", "ResourceQuotaExceeded"),
    ),
    _call(
        Op.DEALLOC_GRAMMAR,
        "grammar: u32, its id",
        a="grammar",
        trait="Grammar",
        errors=("UnknownResource",),
    ),
    _shared(Op.STORE_GET, "key: UTF-8", "key", answer="u32 1 if the key is there; bytes", section="4.3"),
    _shared(
        Op.STORE_SET,
        "key: UTF-8\nvalue: bytes",
        "key value",
        a="#key",
        answer="u32 1 if the key was there",
        section="4.3",
        errors=("InvalidArgument", "Overloaded", "Unavailable", "ResourceQuotaExceeded"),
    ),
    _shared(Op.STORE_DELETE, "key: UTF-8", "key", answer="u32 1 if the key was there", section="4.3"),
    _shared(Op.STORE_EXISTS, "key: UTF-8", "key", answer="u32 1 if the key is there", section="4.3"),
    _shared(Op.STORE_LIST_KEYS, "prefix: UTF-8", "prefix", answer="JSON list of keys", section="4.3"),
    _shared(
        Op.BROADCAST,
        "topic: UTF-8\nmessage: bytes",
        "topic message",
        a="#topic",
        answer="u32 subscriptions that got it",
        section="4.3",
        errors=("InvalidArgument", "NotAllowed"),
    ),
    _shared(
        Op.SUBSCRIBE,
        "number: u32, the subscription's new number\ntopic: UTF-8",
        "topic",
        a="number",
        section="4.3",
        errors=("InvalidArgument", "NotAllowed", "ResourceInUse", "ResourceQuotaExceeded"),
    ),
    _shared(Op.UNSUBSCRIBE, _SUBSCRIPTION, a="number", sdk="Subscription.close", errors=("UnknownResource",)),
    _shared(
        Op.NEXT_MESSAGE,
        _SUBSCRIPTION,
        a="number",
        answer="u32 messages lost before; bytes",
        sdk="Subscription.receive",
        errors=("InvalidArgument", "UnknownResource", "ResourceInUse"),
    ),
    _call(
        Op.EXPORT_KVPAGE,
        "table: u32, the table\ntokens: u32, how many of its tokens, 0xFFFFFFFF for all, 0 for no table"
        "\nttl_s: u32, seconds without use, 0 as is usual\nname: UTF-8\ntail: u32[], [n] tokens that follow",
        "ttl_s name tail",
        a="table",
        b="tokens",
        c="#name",
        trait="Allocate",
        answer="u32 tokens, u32 version; 16 bytes",
        section="4.1, Table 1",
        errors=("InvalidArgument", "UnknownResource", "NotPlain", "NameBudgetExceeded", "NotAllowed"),
    ),
    _call(
        Op.IMPORT_KVPAGE,
        "name: UTF-8",
        "name",
        trait="Allocate",
        answer="u32 tokens, u32 version; 16 bytes, u32[tokens]",
        section="4.1, Table 1",
        errors=("InvalidArgument", "UnknownName", "NotAllowed"),
    ),
    _call(
        Op.UNEXPORT_KVPAGE,
        "name: UTF-8",
        "name",
        trait="Allocate",
        section="4.1",
        errors=("InvalidArgument", "UnknownName", "NotAllowed"),
    ),
    _call(
        Op.GET_ALL_EXPORTED_KVPAGES,
        "",
        trait="Allocate",
        answer="JSON list of name, tokens, version, digest",
        section="4.1",
    ),
    _call(
        Op.SET_PREFIX_CACHE,
        "on: bool, the queue's tables share rows\nprogram: bool, all queues of the program",
        a="on",
        b="program",
        answers=Answers.NEVER,
        trait="Tables",
        errors=("InvalidArgument",),
    ),
    _call(
        Op.EXPECT,
        "tokens: u32, how many the program still computes, 0 for unknown",
        a="tokens",
        queue=False,
        answers=Answers.NEVER,
        trait="Queues",
    ),
)
