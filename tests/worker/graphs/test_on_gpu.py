"""Real captures and replays, on a CUDA device: the same decode steps with graphs and without."""

from __future__ import annotations

import os

import pytest
import torch

from tartlet_worker.graphs.capture import CudaCapture
from tartlet_worker.graphs.decoder import GraphDecoder
from tartlet_worker.torch_engine.kv_budget import graph_bytes
from tartlet_worker.torch_engine.memory import give_back_memory
from tests.worker.graphs.decode_streams import compare, compare_pools
from tests.worker.graphs.test_graph_decoder import Programs, plain_driver
from tests.worker.graphs.test_two_in_flight import Rig, drawn, plain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available(),
        reason="there is no CUDA device, or Triton interprets",
    ),
]


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("name", ["llama3-grouped", "qwen2-window"])
def test_replays_tell_what_eager_steps_tell(name: str, *, lists: bool) -> None:
    options = {"device": "cuda", "attention": "triton", "graph_buckets": "1,2,4,8"}
    drivers = [plain_driver(name, graphs=graphs, **options) for graphs in ("on", "off")]
    decoder = drivers[0].engine.decoder
    assert isinstance(decoder, GraphDecoder)
    programs = Programs(drivers, 7, f"gpu {name}", lists=lists)
    for t in range(7):
        programs.prefill(t, int(programs.rng.integers(1, 12)))
    before = decoder.replays
    for turn in range(24):
        chosen = programs.rng.permutation(7)[: int(programs.rng.integers(1, 8))].tolist()
        programs.decode(chosen, hot=turn % 3 == 1, top_k=5 if turn % 9 == 4 else 0)
    programs.compare_pools()
    assert decoder.replays == before + 24


def test_steps_in_flight_tell_what_they_tell_one_at_a_time() -> None:
    steps, want, one = drawn("llama3-grouped", "gpu in flight", 100)
    engine = plain(
        "llama3-grouped", device="cuda", attention="triton", graphs="on", graph_buckets="1,2,4,8", kernels="torch"
    )
    rig = Rig(engine)
    compare(rig.run(steps), want)
    compare_pools(engine, one)
    assert len(rig.ahead) > 5


def test_after_a_capture_that_fails_memory_comes_back_and_another_one_succeeds() -> None:
    torch.cuda.empty_cache()
    stream, before = torch.cuda.current_stream(), torch.cuda.memory_reserved()
    values = [torch.zeros(4 << 20, device="cuda")]

    def add() -> None:
        values[0].add_(1)

    def spoilt() -> None:
        more = values[0] + 1
        if torch.cuda.is_current_stream_capturing():
            more.sum().item()  # a graph can't hold that

    first = CudaCapture("cuda")
    kept = [first.graph(add)]  # its pool is shared
    with pytest.raises(RuntimeError):
        first.graph(spoilt)
    assert torch.cuda.current_stream() == stream
    kept[0]()
    give_back_memory("cuda")
    CudaCapture("cuda").graph(add)()
    torch.cuda.synchronize()
    assert values[0].unique().tolist() == [4]  # two captures, each with one run before it and one replay
    values.clear()
    kept.clear()
    give_back_memory("cuda")
    assert torch.cuda.memory_reserved() <= before + (4 << 20)


def test_graphs_hold_no_more_than_the_estimate() -> None:
    torch.cuda.empty_cache()
    driver = plain_driver("llama3-grouped", device="cuda", attention="triton", graphs="off")
    before = torch.cuda.mem_get_info()[0]
    other = plain_driver("llama3-grouped", device="cuda", attention="triton", graphs="on")
    held = before - torch.cuda.mem_get_info()[0]
    config = other.engine.decoder.config
    # The second engine's own weights and pools are among the bytes that are gone.
    assert held <= graph_bytes(config, rows=256, page_size=4, element_bytes=4) + (256 << 20)
    assert not isinstance(driver.engine.decoder, GraphDecoder)
