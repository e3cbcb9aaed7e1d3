"""An EnginePool's order and durability reach a real control, at once and again, and go with the pool."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest

from tartlet_protos import control_pb2, control_pb2_grpc
from tests.operator.api_server import ApiServer, Refused
from tests.operator.operator_process import live

FAKE = {"model": {"name": "fake"}, "engine": {"backend": "Fake"}}


async def test_a_pools_order_is_controls_and_changes_without_a_new_pod(
    api_server: ApiServer, namespace: str, run_dir: Path
) -> None:
    async with (
        live(api_server, namespace, run_dir) as it,
        grpc.aio.insecure_channel(f"unix:{run_dir}/control.sock") as channel,
    ):
        control: control_pb2_grpc.ControlAsyncStub = control_pb2_grpc.ControlStub(channel)
        watch = control.WatchEngines(control_pb2.WatchEnginesRequest(every_s=60))

        async def told(*orders: tuple[str, list[float], float | None]) -> None:
            while True:
                reply = await watch.read()
                assert isinstance(reply, control_pb2.EnginesReply)
                beta = [o.starved_at if o.HasField("starved_at") else None for o in reply.orders]
                if [(o.order, list(o.quanta_s), b) for o, b in zip(reply.orders, beta, strict=True)] == list(orders):
                    assert {o.pool for o in reply.orders} <= {f"{namespace}/pool"}
                    return

        async def told_durability(order: str, durability: str) -> None:
            while True:
                reply = await watch.read()
                assert isinstance(reply, control_pb2.EnginesReply)
                if [(o.order, o.durability) for o in reply.orders] == [(order, durability)]:
                    return

        quick = {"order": "plas", "quantaMilliseconds": [100, 400]}
        it.create("EnginePool", "pool", {**FAKE, "scheduling": quick})
        await told(("plas", [0.1, 0.4], None))
        template = it.core("GET", "apis/apps/v1", "deployments/pool")["spec"]["template"]
        it.patch("EnginePool", "pool", {"spec": {"scheduling": {"order": "gittins", "starvedAt": 64}}})
        await told(("gittins", [0.1, 0.4], 64.0))
        it.patch("EnginePool", "pool", {"spec": {"scheduling": {"preempt": "quantum", "every": 4}}})
        while True:
            reply = await watch.read()
            assert isinstance(reply, control_pb2.EnginesReply)
            if [(o.order, o.preempt, o.every) for o in reply.orders] == [("gittins", "quantum", 4)]:
                break
        assert it.core("GET", "apis/apps/v1", "deployments/pool")["spec"]["template"] == template
        await control.SetOrder(control_pb2.SetOrderRequest(order=control_pb2.PoolOrder(pool=f"{namespace}/pool")))
        await told(("gittins", [0.1, 0.4], 64.0))  # the operator gives a control that knows nothing the order again
        it.patch("EnginePool", "pool", {"spec": {"scheduling": None, "durability": "off"}})
        await told_durability("", "off")  # a pool without an order is listed for its durability alone
        assert it.core("GET", "apis/apps/v1", "deployments/pool")["spec"]["template"] == template
        await control.SetOrder(control_pb2.SetOrderRequest(order=control_pb2.PoolOrder(pool=f"{namespace}/pool")))
        await told_durability("", "off")
        it.patch("EnginePool", "pool", {"spec": {"scheduling": quick, "durability": "degrade"}})
        await told_durability("plas", "degrade")
        with pytest.raises(Refused) as never:
            it.patch("EnginePool", "pool", {"spec": {"durability": "never"}})
        assert never.value.status == 422
        for wrong in (
            {"order": "srpt"},
            {"preempt": "never"},
            {"every": 0},
            {"quantaMilliseconds": [400, 100]},
            {"quantaMilliseconds": [5, 5]},
        ):
            with pytest.raises(Refused) as refused:
                it.patch("EnginePool", "pool", {"spec": {"scheduling": wrong}})
            assert refused.value.status == 422
        it.delete("EnginePool", "pool")
        await told()
        watch.cancel()
