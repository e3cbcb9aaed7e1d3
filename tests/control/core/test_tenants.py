"""Engines of tenants: whose programs use them, and what others learn of them."""

from __future__ import annotations

from typing import Any

import pytest

from tartlet_common.abi import Op
from tartlet_common.engine.pools import Home, Reach
from tartlet_common.errors import registry as errors
from tartlet_common.rpc.tenancy import Scope
from tartlet_control.serving.state import state_of
from tartlet_control.tables import models
from tartlet_control.tables.engines import EngineState
from tartlet_worker.fake import FakeEngine, FakeOptions
from tests.control.harness import Guest, Host, decode_text

PROMPT = [3, 1, 4, 1, 5]
A, B = Home("a", "demo"), Home("b", "fake")
SHARED = Home("ops", "demo", shared=True)


def join(host: Host, name: str, home: Home, **options: Any) -> EngineState:
    """Joins a fake engine of a pool; a page size tells the tenants' models of one name apart."""
    fake = FakeEngine(FakeOptions(**{"page_size": 4, "num_pages": 64, "num_embeds": 256, "num_slots": 256, **options}))
    state = host.core.on_engine(name, "inc-" + name, fake.spec, home)
    host.engines.append((state, fake))
    return state


def engine_of(host: Host, guest: Guest) -> list[str]:
    """Returns the engines of a program that has computed something, as control's state shows them."""
    decode_text(guest, PROMPT, 2)
    host.run()
    (engines,) = [p["engines"] for p in state_of(host.core)["programs"] if p["id"] == guest.program_id]
    return list(engines)


def test_programs_of_two_tenants_with_pools_of_one_model_name_stay_on_their_own() -> None:
    """Another digest of another tenant is no other form of the model: neither takes over, and neither is refused."""
    host = Host(engines=0)
    join(host, "e", A)
    join(host, "e", B, page_size=8)
    for tenant in ("a", "b"):
        for model in ("", "fake"):
            assert engine_of(host, host.start(tenant=tenant, model=model)) == [f"{tenant}/e"]
    host.core.on_engine_gone(host.core.engines["a/e"])
    assert isinstance(host.start(tenant="a", model="fake").started, errors.NoEngine), "b's engine never stands in"
    again = join(host, "e", A)
    assert engine_of(host, host.start(tenant="a", model="fake")) == [again.id] == ["a/e"]


def test_an_engine_never_takes_the_place_of_another_tenants_engine_of_its_name() -> None:
    host = Host(engines=0)
    join(host, "pod-0", A)
    program = host.start(tenant="a")
    assert engine_of(host, program) == ["a/pod-0"]
    join(host, "pod-0", B)
    assert set(host.core.engines) == {"a/pod-0", "b/pod-0"}
    assert program.killed is None


def test_one_tenants_engines_are_bounded_in_number_and_keep_out_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "OWNERS_ENGINES", 2)
    host = Host(engines=0)
    join(host, "e0", B)
    join(host, "e1", B, model="another")
    with pytest.raises(errors.Overloaded) as refused:
        join(host, "e2", B)
    assert refused.value.fields["limit"] == 2
    again = join(host, "e1", B)  # a worker that restarts
    assert again.id == "b/e1"
    assert engine_of(host, host.start(tenant="a", model=join(host, "e2", A).spec.model)) == ["a/e2"]


def test_a_tenant_without_engines_gets_none_of_others_and_learns_no_name_of_theirs() -> None:
    host = Host(engines=0)
    join(host, "e", A, model="secret")
    for model in ("secret", "other"):
        refused = host.start(tenant="b", model=model).started
        assert isinstance(refused, errors.UnknownModel)
        assert refused.fields["available"] == []
    refused = host.start(tenant="b", pool="a/demo").started
    assert isinstance(refused, errors.UnknownPool)
    assert refused.fields["available"] == []
    guest = host.start(tenant="b")
    for op, index in ((Op.CREATE_QUEUE, 0), (Op.CREATE_QUEUE, 1)):
        guest.put(op, queue=7, a=index, wait=True)
    host.run()
    told = state_of(host.core, Scope("b"))
    assert (told["engines"], told["models"]) == ([], [])
    assert "secret" not in str([answer.payload for answer in guest.answers])
    assert len(state_of(host.core)["engines"]) == 1


def test_a_shared_pool_serves_everyone_and_the_other_pools_of_its_tenant_do_not() -> None:
    host = Host(engines=0)
    join(host, "open", SHARED)
    join(host, "closed", Home("ops", "private"))
    for _ in range(3):
        assert engine_of(host, host.start(tenant="a", model="fake")) == ["ops/open"]
    assert isinstance(host.start(tenant="a", pool="ops/private").started, errors.UnknownPool)
    assert [e["id"] for e in state_of(host.core, Scope("a"))["engines"]] == ["ops/open"]
    host.core.cordon("ops/open")
    assert isinstance(host.start(tenant="a", model="fake").started, errors.NoEngine)
    assert engine_of(host, host.start(tenant="ops", model="fake")) == ["ops/closed"]


def test_a_program_that_names_no_model_prefers_its_own_tenants_engines() -> None:
    host = Host(engines=0)
    join(host, "s", SHARED, model="aaa")
    assert engine_of(host, host.start(tenant="a")) == ["ops/s"]
    join(host, "own", A, model="zzz")
    assert engine_of(host, host.start(tenant="a")) == ["a/own"]
    assert engine_of(host, host.start(tenant="b")) == ["ops/s"]


@pytest.mark.parametrize(("seed", "expected"), [(0, "ops/s"), (1, None)], ids=["same weights", "other weights"])
def test_a_shared_pool_stands_in_for_an_own_one_only_with_the_same_weights(seed: int, expected: str | None) -> None:
    host = Host(engines=0)
    own, shared = join(host, "own", A), join(host, "s", SHARED, seed=seed)
    assert (own.spec.model_digest == shared.spec.model_digest) == (expected is not None)
    assert engine_of(host, host.start(tenant="a", model="fake")) == ["a/own"]
    host.core.cordon("a/own")
    guest = host.start(tenant="a", model="fake")
    if expected is None:
        assert isinstance(guest.started, errors.NoEngine)
    else:
        assert engine_of(host, guest) == [expected]


def test_a_launch_for_a_pool_runs_on_that_pool() -> None:
    host = Host(engines=0)
    join(host, "small", Home("a", "small"))
    join(host, "large", Home("a", "large"))
    for pool, engine in (("small", "a/small"), ("a/large", "a/large")):
        for _ in range(3):
            assert engine_of(host, host.start(tenant="a", pool=pool)) == [engine]
    refused = host.start(tenant="a", pool="none").started
    assert isinstance(refused, errors.UnknownPool)
    assert refused.fields["available"] == ["a/large", "a/small"]
    join(host, "s", SHARED, model="aaa")
    for _ in range(3):
        assert engine_of(host, host.start(tenant="a", pool="a/*"))[0].startswith("a/")
    assert engine_of(host, host.start(tenant="a", pool="ops/demo")) == ["ops/s"]


def test_an_engine_without_an_owner_serves_everyone() -> None:
    host = Host()
    for tenant in ("", "a", "b"):
        assert engine_of(host, host.start(tenant=tenant, model="fake")) == ["e0"]


def test_control_orders_the_models_of_a_reach_as_its_choice_says() -> None:
    host = Host(engines=0)
    join(host, "s", SHARED, model="aaa")
    join(host, "own", A, model="zzz")
    reach = Reach("a")
    assert [m.name for m in host.core.models.seen_by(reach)] == ["zzz", "aaa"]
    default = host.core.models.named("", reach)
    assert default is not None
    assert default.name == "zzz"
