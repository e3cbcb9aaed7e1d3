"""The names of `MiniHost`: those of control, for one tenant and one program."""

from __future__ import annotations

import json
from array import array
from hashlib import blake2b

from tartlet_common.abi import Op
from tartlet_control.sharing.names import Key, Names, Version, checked


class MiniNames:
    """Executes the calls on names."""

    def __init__(self) -> None:
        self.names = Names(tenant_tokens=1000, pins={})
        self.caches: list[tuple[int, int, int]] = []
        """The queue, `a` and `b` of each SET_PREFIX_CACHE."""

    def export(self, name: str, tokens: list[int], ticket: int) -> tuple[int, int, bytes]:
        values = array("I", tokens)
        digest = blake2b(values.tobytes(), digest_size=16).digest()
        made = Version(1, values, digest, [], "p", ticket, 0.0, 0.0)
        found = self.names.export(Key("t", "mini", checked(name)), made)
        return len(found.tokens), found.number, found.digest

    def run(self, op: Op, name: str) -> tuple[int, int, bytes]:
        key = Key("t", "mini", checked(name))
        if op is Op.UNEXPORT_KVPAGE:
            self.names.drop(key)
            return 0, 0, b""
        found = self.names.take(key, "p", 0.0)
        return len(found.tokens), found.number, found.digest + found.tokens.tobytes()

    def listed(self) -> bytes:
        listed = self.names.listed("t", "mini")
        return json.dumps(
            [{"name": k.name, "tokens": len(v.tokens), "version": v.number, "digest": ""} for k, v in listed]
        ).encode()
