"""A pool's durability: kept apart from its order, told to runtimes and to the operator."""

from __future__ import annotations

import pytest

from tartlet_common.engine.pools import Home
from tartlet_common.errors.registry import InvalidArgument, Overloaded
from tartlet_control.core import pool_orders
from tartlet_control.serving.specs import model_info
from tartlet_control.serving.state import engines_of
from tartlet_control.tables.numbering import Numbering
from tests.control.harness import Host

POOL = "team/gpu"


@pytest.fixture
def host() -> Host:
    """A control with three engines: of the pool `team/gpu`, of nobody's pool `gpu`, and of no pool."""
    made = Host(engines=0)
    spec = made.join("nobodys").spec
    made.core.on_engine("pooled", "inc", spec, Home("team", "gpu"))
    made.core.on_engine("everyones", "inc", spec, Home(None, "gpu"))
    told(made)
    return made


def told(host: Host) -> bool:
    """Returns whether runtimes are to be told of models, which is then done."""
    notices = host.session.outbox.notices
    changed, notices.models_changed = notices.models_changed, False
    return changed


def of_pools(host: Host) -> dict[tuple[str, str], str]:
    """Returns what runtimes are told of pools, by owner and name."""
    infos = [model_info(m, Numbering(), host.core.orders.durabilities) for m in host.core.models]
    return {(info.owner, pool.name): pool.durability for info in infos if info is not None for pool in info.pools}


def listed(host: Host) -> list[tuple[str, str, str]]:
    """Returns what the operator is told: pools, their orders and their durabilities."""
    return [(each.pool, each.order, each.durability) for each in engines_of(host.core, {}).orders]


def test_runtimes_are_told_of_a_pools_durability_whenever_it_changes(host: Host) -> None:
    core, version = host.core, host.core.engines_version
    core.set_durability(POOL, "off")
    assert told(host)
    assert core.engines_version > version, "the operator is told too"
    assert of_pools(host) == {("", ""): "", ("", "gpu"): "", ("team", "gpu"): "off"}
    core.set_durability(POOL, "off")
    assert not told(host)
    core.set_durability(POOL, "")
    assert told(host)
    assert set(of_pools(host).values()) == {""}


def test_an_engine_without_a_pool_never_has_a_durability(host: Host) -> None:
    host.core.set_durability("/", "off")
    host.core.set_durability("/gpu", "degrade")
    assert of_pools(host) == {("", ""): "", ("", "gpu"): "degrade", ("team", "gpu"): ""}


def test_a_pools_durability_and_its_order_come_and_go_apart(host: Host) -> None:
    core = host.core
    core.set_durability(POOL, "degrade")
    assert listed(host) == [(POOL, "", "degrade")]
    core.set_order(POOL, "plas", [1.0], 8.0)
    assert listed(host) == [(POOL, "plas", "degrade")]
    core.set_order(POOL, "", (), 0.0)
    assert listed(host) == [(POOL, "", "degrade")]
    core.set_durability(POOL, "")
    assert listed(host) == []


def test_what_is_refused_changes_nothing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    core = host.core
    core.set_durability(POOL, "on")
    told(host)
    with pytest.raises(InvalidArgument) as wrong:
        core.set_durability(POOL, "never")
    assert wrong.value.fields["argument"] == "durability"
    monkeypatch.setattr(pool_orders, "MOST_POOLS", 1)
    with pytest.raises(Overloaded):
        core.set_durability("team/other", "off")
    assert core.orders.durabilities == {POOL: "on"}
    assert not told(host)
    core.set_durability(POOL, "off")
