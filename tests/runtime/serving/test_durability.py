"""Whose durability a launch gets: its own, its inferlet's, that of a pool that serves its model, or the runtime's."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tartlet_common.config.settings import RuntimeSettings
from tartlet_common.engine.pools import Reach
from tartlet_protos import common_pb2, control_pb2, programs_pb2
from tartlet_runtime.abi.limits import default_limits
from tartlet_runtime.answers.models import ModelTable
from tartlet_runtime.budget.ledger import Ledger
from tartlet_runtime.serving.specs import Durability, specify
from tests.runtime.fake_control import engine_spec

LIMITS = default_limits(RuntimeSettings())
PYTHON = common_pb2.Source(language=common_pb2.Source.PYTHON, data=b"pass")


def info(index: int, name: str, owner: str | None, *pools: control_pb2.PoolInfo) -> control_pb2.ModelInfo:
    """Returns what control says of a model without a tokenizer."""
    spec = json.dumps(asdict(engine_spec(model=name, tokenizer_digest="")))
    owned = owner is not None
    return control_pb2.ModelInfo(
        index=index, name=name, spec_json=spec, ready=True, pools=pools, owned=owned, owner=owner or ""
    )


def pool(name: str, durability: str = "", *, shared: bool = False, ready: bool = True) -> control_pb2.PoolInfo:
    return control_pb2.PoolInfo(name=name, durability=durability, shared=shared, ready=ready)


async def _no_tokenizer(_: str) -> bytes:
    raise AssertionError


def _no_task(task: Coroutine[Any, Any, None]) -> None:
    raise AssertionError(task)


@pytest.fixture
def table(tmp_path: Path) -> ModelTable:
    """Tenant a's pools of `demo`, of which all say something else, everyone's, and one that another tenant shares."""
    made = ModelTable(tmp_path, _no_tokenizer, _no_task, Ledger(1 << 30))
    made.update(
        [
            info(0, "demo", "a", pool("plain"), pool("quick", "off"), pool("safe", "on"), pool("soft", "degrade")),
            info(1, "demo", None, pool("", ""), pool("all", "degrade")),
            info(2, "demo", "c", pool("open", "off", shared=True), pool("closed", "degrade")),
            info(3, "other", "a", pool("plain"), pool("slow", "degrade", ready=False)),
        ]
    )
    return made


@pytest.mark.parametrize(
    ("tenant", "asked", "model", "wanted"),
    [
        ("a", "", "demo", "off"),  # of those of one rank the first by name, of those that say something
        ("a", "", "", "off"),
        ("a", "*", "demo", "off"),
        ("a", "a/*", "demo", "off"),
        ("a", "safe", "demo", "on"),
        ("a", "a/soft", "demo", "degrade"),
        ("a", "plain", "demo", "setting"),  # the named pool says nothing
        ("a", "", "other", "degrade"),  # its engine takes no programs now, and is the launch's still
        ("a", "c/open", "demo", "off"),
        ("a", "c/closed", "demo", "setting"),  # another tenant's, which this one may not use
        ("b", "", "demo", "degrade"),  # everyone's
        ("b", "c/open", "demo", "off"),
        ("c", "", "demo", "degrade"),  # its own pool, not its shared one: the first by name
        ("a", "", "unknown", "setting"),
        ("a", "a/nowhere", "demo", "setting"),
    ],
)
def test_the_nearest_pool_with_a_durability_decides(
    table: ModelTable, tenant: str, asked: str, model: str, wanted: str
) -> None:
    assert table.durability(model, Reach.of(tenant, asked), "setting") == wanted


def test_a_change_holds_at_once(table: ModelTable) -> None:
    reach = Reach("a")
    assert table.durability("demo", reach, "on") == "off"
    table.update([info(0, "demo", "a", pool("quick", "degrade"))])
    assert table.durability("demo", reach, "on") == "degrade"
    table.update([info(0, "demo", "a", pool("quick"))])
    assert table.durability("demo", reach, "on") == "on"
    table.update([])
    assert table.durability("demo", reach, "on") == "on"


@pytest.mark.parametrize(
    ("asked", "setting", "wanted"),
    [
        ({}, "on", "off"),  # the pool's before the runtime's
        ({"pool": "plain"}, "degrade", "degrade"),
        ({"pool": "plain"}, "off", "off"),
        ({"pool": "soft"}, "on", "degrade"),
        ({"durability": "on"}, "degrade", "on"),  # a launch's, or its inferlet's, which is merged into it
        ({"durability": "degrade"}, "on", "degrade"),
        ({"degrade": True}, "on", "degrade"),
        ({"pool": "safe", "durability": "off"}, "on", "off"),
        ({"pool": "safe", "durable": False}, "on", "off"),
        ({"fork": programs_pb2.Fork()}, "off", "on"),  # it begins from a journal, and keeps one
        ({"fork": programs_pb2.Fork(), "pool": "soft"}, "on", "degrade"),
    ],
)
def test_a_launch_says_or_else_its_pool_or_else_the_runtime(
    table: ModelTable, asked: dict[str, Any], setting: str, wanted: str
) -> None:
    fields: dict[str, Any] = {"source": PYTHON, "tenant": "a", "model": "demo", "durable": True} | asked
    launch = programs_pb2.LaunchSpec(**fields)
    durability: Durability = partial(table.durability, default=setting)
    spec = specify(launch, PYTHON, LIMITS, durability)
    assert (spec.durable, spec.degrades) == (wanted != "off", wanted == "degrade")
