"""What stands in for a GPU: a recorder in place of capture, and attention in torch that can be captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tartlet_worker.attention.base import StaticRows
from tartlet_worker.attention.torch_gather import TorchGather
from tartlet_worker.graphs.decoder import GraphDecoder
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.sampling.torch_sampler import TorchSampler
from tartlet_worker.torch_engine.engine import TorchEngine

HOST_ONLY = ("item", "cpu", "numpy", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")
"""Methods of a tensor that make the host wait for the device."""
MAKERS = ("tensor", "from_numpy", "as_tensor", "nonzero", "unique")
"""Functions of torch that copy from the host, or whose result's shape the device decides."""


class NotCaptured(Exception):
    """Something was done in a capture that a graph can't hold."""


@contextmanager
def as_in_a_capture() -> Iterator[None]:
    """Let everything raise that a CUDA graph can't hold."""

    def refuse(name: str) -> Callable[..., Any]:
        def refused(*_args: Any, **_named: Any) -> Any:
            raise NotCaptured(name)

        return refused

    with pytest.MonkeyPatch.context() as patch:
        for name in HOST_ONLY:
            patch.setattr(torch.Tensor, name, refuse(name))
        for name in MAKERS:
            patch.setattr(torch, name, refuse(name))
        yield


class Recorder:
    """`Capture` on a CPU: runs a graph's function again at each replay, under the rules of a capture.

    A real graph reads and writes the addresses of its capture. So the recorder compares the addresses of all tensors
    that live longer than a pass.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self._rules = as_in_a_capture if strict else nullcontext
        self.lasting: Callable[[], dict[str, Tensor]] = dict
        self.replays: list[int] = []  # numbers of the graphs, in order

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        body()
        with self._rules():
            body()
        number, found = len(self.replays), self._addresses()
        self.replays.append(0)

        def replay() -> None:
            assert self._addresses() == found
            self.replays[number] += 1
            with self._rules():
                body()

        return replay

    def _addresses(self) -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in self.lasting().items()}


class _Static:
    """`StaticDecode` in torch: all pages of the longest context are gathered."""

    def __init__(self, rows: StaticRows, reach: int, kv_heads: int) -> None:
        self._rows, self._pages, self._kv_heads = rows, -(-reach // rows.page_size), kv_heads
        self.filled: list[tuple[list[int], list[int]]] = []
        self._columns = torch.arange(self._pages * rows.page_size)

    def fill(self, num_pages: Any, position: Any) -> None:
        assert np.array_equal(self._rows.position.numpy(), position)
        assert (num_pages == position // self._rows.page_size + 1).all()
        for row in range(len(num_pages)):  # a GPU would read past a pool
            pages = self._rows.pages[row, : num_pages[row]]
            assert (pages >= 0).all()
            self._rows.pages[row, num_pages[row] :] = self._rows.pages[row, 0]  # may stand there: must not matter
        self.filled.append((num_pages.tolist(), position.tolist()))

    def start(self) -> None:
        self._seen = self._columns[None] <= self._rows.position[:, None]

    def run(self, q: Tensor, kv: Tensor, window: int | None) -> Tensor:
        rows, heads, dim = q.shape
        taken = kv[:, self._rows.pages[:, : self._pages].long()].transpose(2, 3).flatten(3, 4)
        keys, values = (part.repeat_interleave(heads // self._kv_heads, 1) for part in taken)
        seen = self._seen
        if window is not None:
            seen = seen & (self._rows.position[:, None] - self._columns[None] < window)
        scores = torch.einsum("rhd,rhcd->rhc", q.float(), keys.float()) * dim**-0.5
        weights = torch.where(seen[:, None], scores, float("-inf")).softmax(-1)
        return torch.einsum("rhc,rhcd->rhd", weights, values.float()).to(q.dtype).reshape(rows, heads * dim)


class GatheredStatic(TorchGather):
    """Gathered pages, which a graph can hold."""

    def __init__(self, kv_heads: int, device: str) -> None:
        super().__init__(kv_heads, device)
        self._key_heads = kv_heads
        self.made: list[_Static] = []

    def reaches(self, rows: int, most: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys(min(reach, most) for reach in (16, 48, most)))

    def static(self, rows: StaticRows, reach: int) -> _Static:
        self.made.append(_Static(rows, reach, self._key_heads))
        return self.made[-1]


def with_recorded_graphs(
    engine: TorchEngine, buckets: tuple[int, ...], attention: Any = None, *, strict: bool = True
) -> tuple[TorchEngine, Recorder]:
    """Return an engine over the same pools whose plain decode steps run through graphs, and what recorded them.

    Args:
        engine: whose pools and decoder are taken.
        buckets: rows of the graphs.
        attention: what can be captured; None: `GatheredStatic`.
        strict: refuse in a capture what a graph can't hold.
    """
    eager = engine.decoder
    assert isinstance(eager, TorchDecoder)
    recorder = Recorder(strict=strict)
    attention = attention or GatheredStatic(eager.config.kv_heads, "cpu")
    made = GraphDecoder(eager, attention, engine.pools, recorder, buckets)
    buffers, pools = made.buffers, engine.pools
    recorder.lasting = lambda: {
        "columns": buffers.columns, "pages": buffers.pages, "embeds": pools.embeds, "kv": pools.kv,
        "cos": eager.rope.cos, "sin": eager.rope.sin, "answers": buffers.answers(1)[0],
        "slot_token": buffers.slot_token, "slot_ended": buffers.slot_ended,
    }  # fmt: skip
    made.capture()
    return TorchEngine(engine.spec, made, pools, TorchSampler(), engine.tokenizer_json()), recorder
