"""The ABI's test vectors of HTTP requests, for `gen_abi_vectors`."""

from __future__ import annotations

import json

from tartlet_common.abi import Op
from tools.abi_vector import Record, Vector, awaited, submission


def web_vectors() -> list[Vector]:
    """Yield the operations of HTTP requests."""
    head = {
        "method": "POST",
        "url": "https://example.org/ä",
        "headers": [["X-A", "b"], ["Content-Type", "application/json"]],
        "timeout_s": 2.5,
        "redirects": 3,
    }
    told, body = json.dumps(head, ensure_ascii=False).encode(), b'{"n": 1}'
    return [
        submission(
            Op.HTTP_REQUEST,
            awaited(Op.HTTP_REQUEST, a=len(told), b=7, c=1 << 20, payload=told + body),
            number=7,
            method="post",
            url=head["url"],
            headers={"X-A": "b"},
            json={"n": 1},
            timeout_s=2.5,
            redirects=3,
        ),
        submission(Op.HTTP_READ, awaited(Op.HTTP_READ, a=4096, b=7), number=7, most=4096),
        submission(Op.HTTP_CLOSE, Record(Op.HTTP_CLOSE, b=7), number=7),
    ]
