"""What a pool has for its own goes to control and comes back as the spec has it."""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_operator.api.engine_pool import EnginePoolSpec
from tartlet_operator.control.orders import Own, order_of, own_of

FAKE = {"model": {"name": "m"}, "engine": {"backend": "Fake"}}
QUICK = {"order": "plas", "quantaMilliseconds": [100, 400], "starvedAt": 64, "preempt": "quantum", "every": 4}


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"durability": "off"},
        {"scheduling": QUICK},
        {"scheduling": QUICK, "durability": "degrade"},
        {"scheduling": {"order": "gittins", "starvedAt": 0}},
        {"scheduling": {"placement": "autellix", "shortTokens": 64}, "durability": "on"},
    ],
)
def test_what_a_pool_has_for_its_own_comes_back_from_control_unchanged(own: dict[str, Any]) -> None:
    said = Own.of(EnginePoolSpec.model_validate({**FAKE, **own}))
    told = order_of("ns/p", said)
    assert (told.pool, told.durability) == ("ns/p", own.get("durability", ""))
    back = own_of(told)
    assert (back.scheduling is None, back.durability) == (said.scheduling is None, said.durability)
    assert (back.scheduling and back.scheduling.dump()) == (said.scheduling and said.scheduling.dump())
