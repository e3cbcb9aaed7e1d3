"""Vectors of the calls that control answers."""

from __future__ import annotations

from tartlet_common.abi import WHOLE_TABLE, GrammarKind, Op, Priority
from tools.calls.vectors.form import EVERY_BYTE, Vector, submission


def sharing_vectors() -> list[Vector]:
    """Return the calls on what a tenant's programs share."""
    key, number, every = "caf\u00e9", 7, EVERY_BYTE.hex()
    keyed = (Op.STORE_GET, Op.STORE_DELETE, Op.STORE_EXISTS)
    return [
        *(submission(op, {"key": key}, awaited=True, key=key) for op in keyed),
        submission(Op.STORE_SET, {"key": key, "value": EVERY_BYTE}, awaited=True, key=key, value=every),
        submission(Op.STORE_LIST_KEYS, {"prefix": "a/"}, awaited=True, prefix="a/"),
        submission(Op.BROADCAST, {"topic": key, "message": EVERY_BYTE}, awaited=True, topic=key, message=every),
        submission(Op.SUBSCRIBE, {"number": number, "topic": key}, awaited=True, number=number, topic=key),
        *(submission(op, {"number": number}, awaited=True, number=number) for op in (Op.UNSUBSCRIBE, Op.NEXT_MESSAGE)),
    ]


def control_vectors() -> list[Vector]:
    """Return the calls on queues and on what programs hold."""
    ids = [0, 1, 0xFFFFFFFE]
    holding = (op for op in Op if "ALLOC" in op.name and op is not Op.DEALLOC_GRAMMAR)
    high = int(Priority.HIGH)
    return [
        submission(Op.CREATE_QUEUE, {"model": 2}, model=2),
        submission(Op.SET_QUEUE_PRIORITY, {"priority": high}, priority=high),
        submission(Op.EXPECT, {"tokens": 5000}, tokens=5000),
        submission(Op.SYNCHRONIZE, {}, awaited=True),
        submission(Op.RESET, {}),
        submission(Op.CANCEL, {"since": 41}, awaited=True, since=41),
        *(submission(op, {"ids": ids}, ids=ids) for op in holding),
        submission(
            Op.TABLE,
            {"table": 5, "keep_tokens": 32, "new_rows": 2, "source": [4]},
            into=5,
            source=4,
            keep_tokens=32,
            new_rows=2,
        ),
        submission(
            Op.TABLE,
            {"table": 5, "keep_tokens": 16, "new_rows": 1, "source": []},
            "table_of_itself",
            into=5,
            source=5,
            keep_tokens=16,
            new_rows=1,
        ),
        submission(Op.USAGE, {}, awaited=True),
    ]


def grammar_vectors() -> list[Vector]:
    """Return the calls on grammars."""
    kind, text = int(GrammarKind.REGEX), "[a-z]+"
    return [
        submission(Op.GRAMMAR, {"grammar": 4, "kind": kind, "text": text}, awaited=True, id=4, kind=kind, text=text),
        submission(Op.DEALLOC_GRAMMAR, {"grammar": 4}, grammar=4),
    ]


def name_vectors() -> list[Vector]:
    """Return the calls on names."""
    name = "docs/ä"
    return [
        submission(
            Op.EXPORT_KVPAGE,
            {"table": 5, "tokens": WHOLE_TABLE, "ttl_s": 0, "name": name, "tail": []},
            awaited=True,
            kv=5,
            exported=name,
        ),
        submission(
            Op.EXPORT_KVPAGE,
            {"table": 0, "tokens": 0, "ttl_s": 60, "name": name, "tail": [1, 70000]},
            "export_kvpage_tail",
            awaited=True,
            kv=None,
            exported=name,
            tail=[1, 70000],
            ttl_s=60,
        ),
        *(submission(op, {"name": name}, awaited=True, exported=name) for op in (Op.IMPORT_KVPAGE, Op.UNEXPORT_KVPAGE)),
        submission(Op.GET_ALL_EXPORTED_KVPAGES, {}, awaited=True),
        submission(Op.SET_PREFIX_CACHE, {"on": 0, "program": 1}, program=True),
    ]
