"""Values that expire share a tenant's budget with its programs' values, and give way to them."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartlet_common.abi import Op
from tartlet_common.errors.base import TartletError
from tartlet_common.errors.registry import Overloaded, ResourceQuotaExceeded
from tartlet_control.tables.shared import store as stores
from tartlet_control.tables.shared.expiring import dated, expiry
from tartlet_control.tables.shared.store import HIDDEN, MAX_TENANT_BYTES, MemoryStore, Request

Told = tuple[int, bytes, TartletError | None]
MIB = 1 << 20


def ask(store: MemoryStore, op: Op, key: str, value: bytes = b"", *, tenant: str = "t", **more: Any) -> Told:
    told: list[Told] = []
    store.ask(tenant, Request(int(op), key, value, **more), lambda *answer: told.append(answer))
    return told[0]


def keep(store: MemoryStore, key: str, size: int, end_s: float, now_s: float = 1.0, **more: Any) -> Told:
    return ask(store, Op.STORE_SET, HIDDEN + key, dated(bytes(size), end_s), now_s=now_s, **more)


def there(store: MemoryStore, key: str) -> bool:
    return bool(ask(store, Op.STORE_EXISTS, HIDDEN + key)[0])


def test_those_that_expire_first_give_way_for_new_ones_and_for_programs() -> None:
    store, dropped = MemoryStore(), list[str]()
    store.on_dropped = lambda _, key: dropped.append(key.removeprefix(HIDDEN))
    for key, end_s in (("late", 30.0), ("soon", 10.0), ("later", 40.0)):
        assert keep(store, key, 5 * MIB, end_s)[2] is None
    assert keep(store, "new", 5 * MIB, 50.0)[2] is None
    assert dropped == ["soon"]
    assert ask(store, Op.STORE_SET, "mine", bytes(2 * MIB))[2] is None
    assert dropped == ["soon", "late"]
    assert ask(store, Op.STORE_LIST_KEYS, "") == (1, b'["mine"]', None)
    for at in range(7):
        assert ask(store, Op.STORE_SET, f"mine{at}", bytes(2 * MIB - 100))[2] is None
    assert isinstance(keep(store, "more", 2 * MIB, 60.0)[2], ResourceQuotaExceeded)
    assert [ask(store, Op.STORE_EXISTS, "mine")[0], there(store, "new")] == [1, False]


def test_a_write_that_is_refused_makes_nothing_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for at in range(8):
        assert ask(store, Op.STORE_SET, f"mine{at}", bytes(MIB))[2] is None
    for at in range(3):
        keep(store, f"response{at}", 2 * MIB, 10.0 + at)
    assert isinstance(ask(store, Op.STORE_SET, "large", bytes(9 * MIB))[2], ResourceQuotaExceeded)
    assert isinstance(keep(store, "large", 9 * MIB, 99.0)[2], ResourceQuotaExceeded)
    monkeypatch.setattr(stores, "MAX_KEYS", 8)
    assert isinstance(ask(store, Op.STORE_SET, "another", b"")[2], ResourceQuotaExceeded)
    assert all(there(store, f"response{at}") for at in range(3))


def test_values_that_expire_give_way_to_another_tenant_where_all_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_BYTES", 20 * MIB)
    store, dropped = MemoryStore(), list[tuple[str, str]]()
    store.on_dropped = lambda tenant, key: dropped.append((tenant, key.removeprefix(HIDDEN)))
    keep(store, "late", 9 * MIB, 30.0, tenant="a")
    keep(store, "soon", 9 * MIB, 20.0, tenant="b")
    assert ask(store, Op.STORE_SET, "mine", bytes(3 * MIB), tenant="c")[2] is None
    assert dropped == [("b", "soon")]
    assert ask(store, Op.STORE_SET, "mine", bytes(15 * MIB), tenant="c")[2] is None
    assert dropped == [("b", "soon"), ("a", "late")]
    assert isinstance(ask(store, Op.STORE_SET, "mine", bytes(8 * MIB), tenant="d")[2], Overloaded)


def test_many_values_give_way_without_a_search_for_each() -> None:
    store, count = MemoryStore(), 4000
    for at in range(count):
        keep(store, f"response{at}", 3900, 10.0 + (at * 7919) % count)
    began_s = time.thread_time()
    assert ask(store, Op.STORE_SET, "mine", bytes(MAX_TENANT_BYTES - 1000))[2] is None
    assert time.thread_time() - began_s < 0.3  # the quadratic search took 2 s and more
    assert ask(store, Op.STORE_LIST_KEYS, "") == (1, b'["mine"]', None)


def test_a_value_that_is_written_over_and_over_leaves_nothing_behind() -> None:
    store = MemoryStore()
    for at in range(5000):
        keep(store, "reader", 1, 10.0 + at)
    assert len(store._expiring._all._heap) < 200


def test_one_that_grows_makes_room_among_the_others() -> None:
    store = MemoryStore()
    for key, end_s in (("own", 10.0), ("other", 20.0)):
        keep(store, key, 7 * MIB, end_s)
    assert keep(store, "own", 12 * MIB, 10.0)[0] == 1
    assert [there(store, "own"), there(store, "other")] == [True, False]


def test_expired_ones_are_dropped_for_every_tenant() -> None:
    store = MemoryStore()
    keep(store, "a", 1, 10.0)
    keep(store, "b", 1, 200.0, tenant="u")
    keep(store, "c", 1, 500.0, now_s=100.0, tenant="u")
    assert [ask(store, Op.STORE_EXISTS, HIDDEN + key, tenant=t)[0] for key, t in (("a", "t"), ("b", "u"))] == [0, 1]


def test_a_key_that_must_be_there_is_not_made() -> None:
    store = MemoryStore()
    assert keep(store, "gone", 1, 10.0, existing=True) == (0, b"", None)
    assert not there(store, "gone")
    keep(store, "here", 1, 10.0)
    assert keep(store, "here", 2, 10.0, existing=True) == (1, b"", None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t", "u"]), st.sampled_from(["a", "b", "c", HIDDEN + "x", HIDDEN + "y"]),
            st.integers(0, 40), st.floats(0.0, 500.0), st.sampled_from([Op.STORE_SET, Op.STORE_DELETE]),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_what_is_held_is_what_is_there_and_within_the_bounds(steps: list[tuple[str, str, int, float, Op]]) -> None:
    most, every = stores.MAX_TENANT_BYTES, stores.MAX_BYTES
    stores.MAX_TENANT_BYTES, stores.MAX_BYTES = 60, 100  # type: ignore[misc]
    try:
        store, now_s = MemoryStore(), 0.0
        for tenant, key, size, end_s, op in steps:
            now_s += 20
            error = ask(store, op, key, dated(bytes(size), end_s), tenant=tenant, now_s=now_s)[2]
            assert error is None or isinstance(error, ResourceQuotaExceeded | Overloaded)
            held = {t: sum(len(k.encode()) + len(v) for k, v in kept.items()) for t, kept in store._values.items()}
            assert held == store._held
            assert store._total == sum(held.values()) <= 100
            assert max(held.values(), default=0) <= 60
            hidden = {
                t: {k: len(k.encode()) + len(kept[k]) for k in kept if k.startswith(HIDDEN)}
                for t, kept in store._values.items()
            }
            assert store._expiring.keys() == {(t, k) for t, kept in hidden.items() for k in kept}
            for t in ("t", "u"):
                kept = hidden.get(t, {})
                assert store._expiring.held(t) == (len(kept), sum(kept.values()))
                first = store._expiring.next(t)
                ends = {k: expiry(store._values[t][k]) for k in kept}
                assert (first is None) if not kept else (ends[str(first)] == min(ends.values()))
    finally:
        stores.MAX_TENANT_BYTES, stores.MAX_BYTES = most, every  # type: ignore[misc]
    assert most == MAX_TENANT_BYTES
