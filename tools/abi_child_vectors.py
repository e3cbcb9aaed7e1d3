"""The ABI's test vectors of programs that programs start, for `gen_abi_vectors`."""

from __future__ import annotations

import json

from tartlet_common.abi import Op
from tools.abi_vector import Vector, awaited, submission


def child_vectors() -> list[Vector]:
    """Yield the operations of children."""
    asked = {
        "inferlet": "echo",
        "args": ["ä", "b"],
        "model": "m",
        "detached": True,
        "children": 2,
        "limits": {"pages": 8, "deadline_s": 2.5},
    }
    told = json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()
    return [
        submission(
            Op.SPAWN,
            awaited(Op.SPAWN, a=3, payload=told),
            number=3,
            inferlet="echo",
            args=asked["args"],
            model="m",
            detached=True,
            children=2,
            pages=8,
            deadline_s=2.5,
        ),
        submission(Op.CHILD_SEND, awaited(Op.CHILD_SEND, a=3, payload=b"\xffhi"), number=3, message=b"\xffhi".hex()),
        submission(Op.CHILD_NEXT, awaited(Op.CHILD_NEXT, a=3, b=7), number=3, offset=7),
        submission(Op.CHILD_KILL, awaited(Op.CHILD_KILL, a=3, payload=b"late"), number=3, reason="late"),
    ]
