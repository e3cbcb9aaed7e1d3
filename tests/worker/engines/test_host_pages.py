"""Pages of suspended programs come back from host memory as they went, and programs in between see none of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tartlet_common.engine.step import EMPTY_I32, Step, Swaps
from tartlet_common.errors.registry import OutOfDeviceMemory
from tartlet_worker import host_pages
from tartlet_worker.copy_stream import CudaCopies, pin
from tartlet_worker.host_pages import HostPages, _runs
from tartlet_worker.sampling.torch_sampler import TorchSampler
from tartlet_worker.torch_engine.engine import TorchEngine
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, changes, copy_batch, embed_batch, forward_batch, i32
from tests.worker.families import checkpoint

NAME = "llama3-grouped"
PAGES, HOST = 12, 6


@pytest.fixture(params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    return load_engine(
        checkpoint(NAME), dtype=request.param, page_size=4, num_pages=PAGES, num_embeds=64, host_kv_bytes=1 << 30
    )


def test_the_spec_tells_the_budget_and_the_cost(engine: TorchEngine) -> None:
    assert engine.spec.host_pages == (1 << 30) // (engine.spec.kv_bytes_per_token * 4)
    assert engine.spec.host_page_ns > 0
    assert (engine.pools.position == -1).all(), "the measurement leaves nothing"
    assert not engine.pools.kv.any()


def test_pages_come_back_as_they_went_though_others_had_the_memory(engine: TorchEngine) -> None:
    pools, rng = engine.pools, np.random.default_rng(3)
    torch.manual_seed(3)
    pools.kv[:, :, :PAGES] = torch.randn_like(pools.kv[:, :, :PAGES])
    pools.position[:PAGES] = rng.integers(0, 99, (PAGES, 4))
    pools.hidden[:PAGES] = rng.random((PAGES, 4)) < 0.3
    pools.refresh(np.arange(PAGES))
    gone, host, back = i32([7, 2, 9, 4]), i32([5, 1, 2, 3]), i32([0, 9, 11, 2])
    before = [a[gone].copy() for a in (pools.position, pools.hidden, pools.seen_position)]
    kv = pools.kv[:, :, gone].clone()
    other = pools.kv[:, :, 5].clone()
    engine.step(Step(1, (), clear_pages=gone, swaps=Swaps(gone, host, EMPTY_I32, EMPTY_I32)))
    assert not pools.kv[:, :, gone].any()
    pools.kv[:, :, gone] = 1.0
    engine.step(Step(2, (), clear_pages=back, swaps=Swaps(EMPTY_I32, EMPTY_I32, host, back)))
    assert torch.equal(pools.kv[:, :, back], kv)
    for now, then in zip((pools.position, pools.hidden, pools.seen_position), before, strict=True):
        assert np.array_equal(now[back], then)
    assert torch.equal(pools.kv[:, :, 5], other)


def test_a_step_may_bring_out_and_back_the_same_page(engine: TorchEngine) -> None:
    pools = engine.pools
    pools.kv[:, :, 3] = 7.0
    pools.position[3] = [0, 1, 2, -1]
    engine.step(Step(1, (), clear_pages=i32([3, 6]), swaps=Swaps(i32([3]), i32([0]), i32([0]), i32([6]))))
    assert (pools.kv[:, :, 6] == 7.0).all()
    assert not pools.kv[:, :, 3].any()
    assert pools.position[6].tolist() == [0, 1, 2, -1]


def test_a_run_of_host_pages_is_one_copy() -> None:
    assert _runs(i32([4, 5, 6, 9, 2, 3])) == [(0, 3), (3, 4), (4, 6)]
    assert _runs(i32([8])) == [(0, 1)]


def test_exactly_the_bytes_asked_for_are_pinned_while_the_owner_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: dict[int, int] = {}

    class Runtime:
        most = 3 << 20

        def cudaHostRegister(self, at: int, size: int, _flags: int) -> int:
            if sum(pinned.values()) + size > self.most:
                return 2
            pinned[at] = size
            return 0

        def cudaHostUnregister(self, at: int) -> None:
            assert synchronized, "copies may still run"
            del pinned[at]

    class Owner:
        pass

    synchronized: list[int] = []
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: synchronized.append(1))
    owner, tensor = Owner(), torch.empty((2 << 20) + 10, dtype=torch.uint8)
    pin(tensor, owner)
    assert pinned == {tensor.data_ptr(): (2 << 20) + 10}
    with pytest.raises(MemoryError):
        pin(torch.empty(1 << 20, dtype=torch.uint8), owner)
    del owner
    gc.collect()
    assert not pinned


def test_more_host_memory_than_there_is_is_refused() -> None:
    with pytest.raises(OutOfDeviceMemory):
        load_engine(checkpoint(NAME), num_pages=4, host_kv_bytes=1 << 50)


def test_host_pages_are_counted_in_whole_pages() -> None:
    one = load_engine(checkpoint(NAME), dtype="float32", num_pages=4).spec.kv_bytes_per_token * 4
    spec = load_engine(checkpoint(NAME), dtype="float32", page_size=4, num_pages=4, host_kv_bytes=3 * one - 1).spec
    assert spec.host_pages == 2


class LateCopies:
    """A stream whose work is done only when the computing waits for it, or when the test lets it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.ran = 0
        self.waits: list[int] = []  # how much work the computing waited for, each time

    def launch(self, work: Callable[[], None], *, after_computing: bool) -> Arrived:
        self.work.append(work)
        return Arrived(self, len(self.work))

    def run(self, until: int) -> None:
        while self.ran < until:
            self.ran += 1
            self.work[self.ran - 1]()


class Arrived:
    def __init__(self, copies: LateCopies, at: int) -> None:
        self.copies, self.at = copies, at

    def done(self) -> bool:
        return self.copies.ran >= self.at

    def hold_computing(self) -> None:
        self.copies.waits.append(self.at)
        self.copies.run(self.at)


@pytest.fixture(params=[None, 2], ids=["one portion", "portions of two"])
def portion(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Let portions have two pages, or all."""
    pages: int | None = request.param
    if pages:
        one = load_engine(checkpoint(NAME), dtype="float32", page_size=4, num_pages=1).spec.kv_bytes_per_token * 4
        monkeypatch.setattr(host_pages, "PORTION", pages * one + 1)
    return pages


def beside(engine: TorchEngine) -> tuple[TorchEngine, LateCopies]:
    """Return an engine over the same pools whose copies run late."""
    copies = LateCopies()
    host = HostPages(engine.pools, HOST, copies)
    sampler = TorchSampler()
    return TorchEngine(engine.spec, engine.decoder, engine.pools, sampler, engine.tokenizer_json(), host=host), copies


def small(host_pages: int = HOST) -> TorchEngine:
    one = load_engine(checkpoint(NAME), dtype="float32", page_size=4, num_pages=1).spec.kv_bytes_per_token * 4
    return load_engine(
        checkpoint(NAME), dtype="float32", page_size=4, num_pages=PAGES, num_embeds=64, host_kv_bytes=host_pages * one
    )


def uses(pages: list[int], into: int, seed: int) -> tuple[Any, Any]:
    """A forward of four tokens that reads pages and writes another."""
    embeds = [*range(4 * (seed % 8), 4 * (seed % 8) + 4)]
    tokens = embed_batch([{"embed": embeds, "token": [seed % 50 + 3 + i for i in range(4)], "position": range(40, 44)}])
    return tokens, forward_batch([{"ikv": pages, "iemb": embeds, "okv": [into], "oemb": embeds}])


def test_steps_of_others_go_on_while_pages_come_back() -> None:
    engine, copies = beside(small())
    driver = Driver(engine)
    for page in range(4):
        driver.prefill([5 + page, 7, 9, 11], [page], embed0=40)
    before = engine.pools.kv[:, :, [0, 1]].clone()
    driver.step(swaps=Swaps(i32([0, 1]), i32([4, 2]), EMPTY_I32, EMPTY_I32), clear_pages=i32([0, 1]))
    driver.step(clear_pages=i32([8]), swaps=Swaps(EMPTY_I32, EMPTY_I32, i32([4]), i32([8])))
    driver.step(*uses([2], 5, 1), clear_pages=i32([9]), swaps=Swaps(EMPTY_I32, EMPTY_I32, i32([2]), i32([9])))
    for seed in range(3):
        driver.ok(*uses([2, 3], 5, seed))
    assert copies.waits == []
    assert not engine.pools.kv[:, :, [8, 9]].any(), "nothing has come yet"
    driver.ok(*uses([3, 8], 6, 4))
    assert len(copies.waits) == 1
    assert torch.equal(engine.pools.kv[:, :, 8], before[:, :, 0])
    assert not engine.pools.kv[:, :, 9].any(), "what nobody needs yet is not waited for"
    driver.step(tables=changes((1, 1, 0, [3, 9])))
    assert len(copies.waits) == 1, "a table that nothing reads needs no pages"
    driver.ok(*uses([2], 5, 5))
    commands = [{"table": 1, "okv_offset": 7, "iemb": [20], "oemb": [20]}]
    driver.embed([9], [20], [7])
    driver.ok(forward_batch(commands))
    assert len(copies.waits) == 2
    assert torch.equal(engine.pools.kv[:, :, 9, :, :3], before[:, :, 1, :, :3])
    driver.ok(*uses([8, 9], 5, 6))
    assert len(copies.waits) == 2, "a page is waited for once"


@pytest.mark.parametrize("use", ["clear", "out", "copy", "write", "reset"])
def test_whatever_touches_a_page_that_comes_waits_for_it(use: str) -> None:
    engine, copies = beside(small())
    driver = Driver(engine)
    driver.prefill([5, 7, 9, 11], [0])
    kv = engine.pools.kv[:, :, 0].clone()
    driver.step(swaps=Swaps(i32([0]), i32([3]), EMPTY_I32, EMPTY_I32), clear_pages=i32([0]))
    driver.step(clear_pages=i32([6]), swaps=Swaps(EMPTY_I32, EMPTY_I32, i32([3]), i32([6])))
    assert copies.waits == []
    if use == "clear":
        driver.step(clear_pages=i32([6]))
    elif use == "out":
        driver.step(swaps=Swaps(i32([6]), i32([1]), EMPTY_I32, EMPTY_I32))
    elif use == "copy":
        driver.ok(copy_batch(6, 7, 0, 0, 4))
        assert torch.equal(engine.pools.kv[:, :, 7], kv)
    elif use == "write":
        driver.ok(*uses([], 6, 1))
    else:
        engine.reset()
    assert len(copies.waits) == 1
    copies.run(len(copies.work))
    came_last = torch.equal(engine.pools.kv[:, :, 6], kv)
    assert came_last == (use in {"out", "copy"}), "what came late didn't overwrite what came after"


@pytest.mark.usefixtures("portion")
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_steps_computes_what_it_would_without_the_stream(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = small()
    late, copies = beside(small())
    both = [Driver(plain), Driver(late)]
    for driver in both:
        for page in range(PAGES):
            driver.prefill([5 + page, 7, 9, 11], [page], embed0=60)
    kept: dict[int, int] = {}  # host pages that hold something
    for number in range(25):
        pages = rng.permutation(PAGES).tolist()
        leave = [pages.pop() for _ in range(rng.integers(0, 3)) if len(kept) < HOST]
        free = [host for host in range(HOST) if host not in kept]
        out = dict(zip(leave, rng.permutation(free)[: len(leave)].tolist(), strict=False))
        kept.update({host: page for page, host in out.items()})
        back = rng.permutation([*kept])[: rng.integers(0, 3)].tolist()
        into = [pages.pop() for _ in back]
        for host in back:
            del kept[host]
        read = rng.permutation(PAGES)[:3].tolist()
        batches = [*uses(read, pages[0], number), copy_batch(pages[1], pages[2], 0, 0, 4)] if rng.random() < 0.6 else []
        swaps = Swaps(i32([*out]), i32([*out.values()]), i32(back), i32(into))
        clear = i32([*into, *leave[:1]])
        answers = [d.step(*batches, clear_pages=clear, swaps=swaps) for d in both]
        for ours, theirs in zip(answers[0].results, answers[1].results, strict=True):
            assert np.array_equal(ours.status, theirs.status)
        assert torch.equal(plain.pools.embeds, late.pools.embeds)
        if rng.random() < 0.3:
            copies.run(int(rng.integers(copies.ran, len(copies.work) + 1)))
    late.reset(keep=range(PAGES))
    assert torch.equal(plain.pools.kv[:, :, :PAGES], late.pools.kv[:, :, :PAGES])
    assert np.array_equal(plain.pools.position, late.pools.position)


@pytest.mark.parametrize("portion", [2], indirect=True)
def test_swapping_takes_no_more_of_the_device_than_two_portions(portion: int) -> None:
    pools = small().pools
    one, seen = pools.kv[:, :, 0].nbytes, Allocations()
    copies = LateCopies()
    with seen:
        host = HostPages(pools, HOST, copies)
    assert sorted(seen.sizes)[-3:] == [portion * one, portion * one, HOST * one]
    assert host_pages.buffer_bytes(HOST, one) == 2 * portion * one
    pools.kv.normal_()
    before, ids, there = pools.kv[:, :, :5].clone(), np.arange(5, dtype=np.int32), i32([5, 1, 2, 3, 0])
    seen.sizes.clear()
    with seen:
        host.copy_out(Swaps(ids, there, EMPTY_I32, EMPTY_I32))
        pools.clear_pages(ids)
        host.copy_in(Swaps(EMPTY_I32, EMPTY_I32, there, ids))
        host.wait_for_all()
    assert max(seen.sizes, default=0) < one
    assert torch.equal(pools.kv[:, :, :5], before)
    assert copies.waits == [1, 2, len(copies.work)], "a portion leaves the buffer before the next one is gathered"


class Allocations(TorchDispatchMode):
    """Notes the bytes of each tensor that an operation makes rather than writes or shows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {a.untyped_storage().data_ptr() for a in [*args, *(kwargs or {}).values()] if torch.is_tensor(a)}
        made = func(*args, **(kwargs or {}))
        if torch.is_tensor(made) and made.untyped_storage().data_ptr() not in given:
            self.sizes.append(made.nbytes)
        return made


def test_work_beside_the_computing_waits_and_is_waited_for_on_the_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record what `CudaCopies` asks of CUDA; a call that isn't recorded here, as one to synchronize, would fail."""
    log: list[str] = []

    class Stream:
        def __init__(self, name: object) -> None:
            self.name = "computing" if name == "computing" else "copies"

        def wait_stream(self, other: Stream) -> None:
            log.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event: Event) -> None:
            log.append(f"{self.name} waits for event {event.at}")

    class Event:
        at = 0

        def record(self) -> None:
            self.at = len(log)
            log.append(f"event {self.at} on {current[-1].name}")

        def query(self) -> bool:
            return False

    current = [Stream("computing")]

    @contextmanager
    def stream(entered: Stream) -> Iterator[None]:
        current.append(entered)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: current[-1])
    copies = CudaCopies(torch.device("cuda:0"))
    copies.launch(lambda: log.append(f"received on {current[-1].name}"), after_computing=False)
    there = copies.launch(lambda: log.append(f"written on {current[-1].name}"), after_computing=True)
    assert log == [
        "received on copies", "event 1 on copies",
        "copies waits for computing", "written on copies", "event 4 on copies",
    ]  # fmt: skip
    assert not there.done()
    there.hold_computing()
    assert log[-1] == "computing waits for event 4"
