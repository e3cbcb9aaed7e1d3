"""Decode steps over page tables by calls of `Engine.step` and nothing else, and the paths that they can take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from bench.harness.intervals import median
from bench.product.common import EmbedTxt, Forward, Sample, Step
from bench.product.gpu import (
    CudaCapture,
    GraphDecoder,
    ModelConfig,
    TableChanges,
    TorchDecoder,
    TorchEngine,
    TorchSampler,
    attention_choice,
    flashinfer_modules,
)
from bench.product.worker import load_engine

STEPS, MOST_S = 30, 1.5


class RunAgain:
    """Stands in for capture where a rehearsal has no card."""

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        """Return the function itself."""
        body()
        return body


@dataclass(frozen=True, slots=True)
class Way:
    """A way through an engine: how it attends, and whether decode steps are graphs."""

    attention: str
    graphs: bool

    @property
    def label(self) -> str:
        """What tables call it."""
        return f"{self.attention}, {'graphs' if self.graphs else 'eager'}"


class Rig:
    """One model with its pools on the device; `engine` gives it another path without loading it again."""

    def __init__(self, checkpoint: Path, device: str, *, num_pages: int, batch: int, **options: Any) -> None:
        """Load a checkpoint for batches of at most `batch` rows."""
        self.device = device
        self._loaded = load_engine(
            checkpoint, device=device, attention="torch-gather", num_pages=num_pages, graphs="off", threads=1,
            max_batch_tokens=4096, max_batch_commands=max(256, batch), num_embeds=4 * batch + 8192, kernels="torch",
            **options,
        )  # fmt: skip
        self.pools, self.spec = self._loaded.pools, self._loaded.spec
        decoder = self._loaded.decoder
        assert isinstance(decoder, TorchDecoder)
        self.decoder = decoder
        self.pools.kv.normal_(0, 0.5)
        self.pools.kv[:, :, self.pools.zero_page].zero_()
        self._values: torch.Tensor | None = None
        self.captured: GraphDecoder | None = None

    @property
    def loaded(self) -> TorchEngine:
        """The engine as it was loaded, which attends to gathered pages."""
        return self._loaded

    def restore(self) -> None:
        """Give all pages the values that they had at the first call, so that loops over them can be compared.

        The values are kept from that call on, which takes as much memory as the pages.
        """
        if self._values is None:
            self._values = self.pools.kv.clone()
        self.pools.kv.copy_(self._values)

    def engine(self, path: Way, buckets: Sequence[int] = ()) -> TorchEngine:
        """Return an engine that takes a path; engines made before are no longer valid."""
        attention, store = attention_choice.make(
            path.attention,
            self.decoder.config,
            self.device,
            batch_invariant=False,
            dtype=self.pools.kv.dtype,
            page_size=self.spec.page_size,
        )
        self.decoder.attend_by(attention, store)
        self.captured = None
        made: Any = self.decoder
        if path.graphs:
            capture = CudaCapture(self.device) if self.device.startswith("cuda") else RunAgain()
            rows = tuple(buckets)
            made = self.captured = GraphDecoder(self.decoder, cast("Any", attention), self.pools, capture, rows)
            made.capture()
        return TorchEngine(self.spec, made, self.pools, TorchSampler(), self._loaded.tokenizer_json())


class DecodeLoop:
    """Rows that decode side by side, each over a table whose context is taken for computed."""

    def __init__(self, engine: TorchEngine, contexts: Sequence[int], steps: int, *, hot: bool = False) -> None:
        """Set the tables up.

        Args:
            engine: whose pages hold any values.
            contexts: tokens of each row's context.
            steps: how many steps will be made, at most.
            hot: sample every second row with noise.
        """
        engine.pools.tables.reset()
        self._engine, self._rows, self._hot = engine, len(contexts), hot
        self._length = np.asarray(contexts, np.int32)
        size, count = engine.spec.page_size, len(contexts)
        per = -(-(self._length + steps) // size)
        ends = np.cumsum(per)
        if ends[-1] > engine.spec.num_pages:
            raise ValueError(f"{ends[-1]} pages are needed, and there are {engine.spec.num_pages}")
        self._row = np.arange(count, dtype=np.int32)
        indptr = np.concatenate([[0], ends]).astype(np.int32)
        zero = np.zeros(count, np.int32)
        rows = np.random.default_rng(0).permutation(int(ends[-1])).astype(np.int32)
        self._setup: TableChanges | None = TableChanges(self._row, self._row, zero, indptr, rows)
        tables = engine.pools.tables
        self._run((), tables=self._setup)
        tables.plain[self._row] = self._length
        engine.pools.slot_token[self._row], engine.pools.slot_ended[self._row] = 5, False
        self._number = 0

    def _run(self, batches: tuple[Any, ...], **fields: Any) -> Any:
        result = self._engine.step(Step(1, batches, **fields))
        for answer in result.results:
            if answer.status.any():
                raise RuntimeError(f"a command did not run: {answer.status.tolist()} {answer.detail}")
        return result

    def step(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Make one step; return the tokens [rows] and their log-probabilities [rows]."""
        b, one = self._rows, np.arange(self._rows + 1, dtype=np.int32)
        lane, none = self._row.astype(np.uint32), np.zeros(0, np.int32)
        hot = np.where(self._row % 2, 0.8, 0.0) if self._hot else np.zeros(b)
        batches = (
            EmbedTxt(lane, one, self._row, np.full(b, -1, np.int32), self._row, self._length),
            Forward(
                lane=lane, ikv=none, ikv_indptr=0 * one, iemb=self._row, iemb_indptr=one, okv=none, okv_indptr=0 * one,
                okv_offset=self._length, oemb=self._row + b, oemb_indptr=one, mask_bits=np.zeros(0, np.uint8),
                mask_indptr=0 * one, table=self._row,
            ),
            Sample(
                lane=lane, embed=self._row + b, slot=self._row, temperature=hot.astype(np.float32), top_k=0 * self._row,
                top_p=np.ones(b, np.float32), min_p=np.zeros(b, np.float32), seed=np.arange(b, dtype=np.uint64),
                draw=np.full(b, self._number, np.uint32), stop=none, stop_indptr=0 * one,
            ),
        )  # fmt: skip
        self._number += 1
        self._length = self._length + 1
        answer = self._run(batches).results[2]
        return answer.token, answer.logprob

    @torch.inference_mode()
    def distributions(self) -> torch.Tensor:
        """Return the log-probabilities [rows, vocab] float32 of all tokens, as the last step left them."""
        logits = self._engine.decoder.logits(self._engine.pools, self._row + self._rows)
        return logits.log_softmax(-1)

    def ms(self, steps: int = STEPS) -> float:
        """Return the median milliseconds of a step, after a few that warm up."""
        for _ in range(3):
            self.step()
        seconds: list[float] = []
        while len(seconds) < steps and sum(seconds) < MOST_S:
            start = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - start)
        return 1e3 * median(seconds)


def flashinfer_lacks(rig: Rig) -> str:
    """Return what keeps FlashInfer from serving a model on this machine, or ""; a rehearsal has its shadow.

    Modules that aren't built are missing here: compiling one takes longer than a step of the proof may.
    """
    if not rig.device.startswith("cuda"):
        return ""
    capability = ".".join(map(str, torch.cuda.get_device_capability(rig.device)))
    needs = attention_choice.flashinfer_needs(rig.decoder.config, rig.spec.dtype)
    return flashinfer_modules.lacks(needs, capability) or unbuilt_modules(rig.decoder.config, rig)


def unbuilt_modules(config: ModelConfig, rig: Rig) -> str:
    """Return which module of FlashInfer's a model lacks that isn't the rig's, in the rig's dtype; or ""."""
    if not rig.device.startswith("cuda"):
        return ""
    capability = ".".join(map(str, torch.cuda.get_device_capability(rig.device)))
    return flashinfer_modules.unbuilt(attention_choice.flashinfer_needs(config, rig.spec.dtype), capability)


def paths(rig: Rig) -> Iterator[Way]:
    """Yield the paths of a model on this machine, the plainest first."""
    yield Way("torch-gather", graphs=False)
    for name, lacks in (("triton", attention_choice.triton_lacks()), ("flashinfer", flashinfer_lacks(rig))):
        if not lacks:
            yield Way(name, graphs=False)
            yield Way(name, graphs=True)


def free_bytes(device: str) -> int:
    """Return the bytes that a card has left; 0 for a CPU."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.startswith("cuda") else 0
