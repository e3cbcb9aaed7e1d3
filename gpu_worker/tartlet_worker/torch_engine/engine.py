"""The torch engine: pools, a decoder and the handlers of batches, behind the `Engine` protocol.

Control may rely on these guarantees, besides those of the protocol:

- Commands of a batch behave as if run one after the other. Forward commands of one lane may stand in one batch, also
  where a later one reads KV pages that an earlier one writes; this costs no extra pass. Other dependencies inside a
  Forward batch (one command writes an embed that a later one reads, or two commands write one KV slot) are honoured
  too, at the cost of one pass each.
- A `forward` without okv may have at most `max_batch_tokens` tokens.
- Writing a token into a KV slot does not change the slot's mask bit. The tokens of one command see each other, whatever
  the mask bits are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch

from tartlet_common.engine.spec import EngineSpec
from tartlet_common.engine.step import BatchResult, Kind, Step, StepResult
from tartlet_common.errors.registry import EngineFailure, OutOfDeviceMemory, TartletError
from tartlet_worker.engine import Following, ignore_computing, nothing_follows
from tartlet_worker.grammar.grammars import Grammars
from tartlet_worker.grammar.optional import GrammarSupport
from tartlet_worker.graphs.decoder import GraphDecoder
from tartlet_worker.handlers.registration import Resources
from tartlet_worker.handlers.registry import HANDLERS
from tartlet_worker.host_pages import HostPages
from tartlet_worker.models.base import Decoder
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import Sampler
from tartlet_worker.torch_engine.lora_loader import LoraLoader
from tartlet_worker.torch_engine.memory import use_device
from tartlet_worker.torch_engine.next_step import NextStep

_WITH_DECODER = frozenset({Kind.EMBED_TXT, Kind.FORWARD, Kind.SAMPLE, Kind.GET_NEXT_DIST})
"""Batches that use the pools' tensors through the decoder alone, which may put work off."""


class TorchEngine:
    """A Llama-family model with its pools on one device; see `Engine` and the module."""

    def __init__(
        self,
        spec: EngineSpec,
        decoder: Decoder,
        pools: Pools,
        sampler: Sampler,
        tokenizer: bytes,
        grammar: GrammarSupport | None = None,
        host: HostPages | None = None,
        adapters: LoraLoader | None = None,
    ) -> None:
        self._spec, self._decoder, self._pools, self._tokenizer = spec, decoder, pools, tokenizer
        self._grammars = None if grammar is None else grammar.grammars
        pools.matchers = None if grammar is None else grammar.matchers
        self._host = host
        self._poisoned: set[int] = set()
        self._adapters = adapters
        has = {adapter.number: adapter for adapter in spec.adapters} if adapters is None else adapters.loaded
        self._resources = Resources(spec, pools, decoder, sampler, self._poisoned, has)
        self._next = NextStep(decoder, self._resources, self._begin) if isinstance(decoder, GraphDecoder) else None

    @property
    def spec(self) -> EngineSpec:
        """See `Engine.spec`."""
        return self._spec

    @property
    def adapters(self) -> LoraLoader | None:
        """See `Engine.adapters`."""
        return self._adapters

    @property
    def grammars(self) -> Grammars | None:
        """See `Engine.grammars`."""
        return self._grammars

    @property
    def pools(self) -> Pools:
        """The engine's pools, for tests and tools."""
        return self._pools

    @property
    def decoder(self) -> Decoder:
        """The engine's decoder, for tests and tools."""
        return self._decoder

    def tokenizer_json(self) -> bytes:
        """See `Engine.tokenizer_json`."""
        return self._tokenizer

    def reset(self, keep: Sequence[int] = ()) -> None:
        """See `Engine.reset`."""
        if self._next is not None:
            self._next.forget()
        if self._host is not None:
            self._host.wait_for_all()
        self._pools.reset(keep)
        self._poisoned.clear()

    @torch.inference_mode()
    def step(
        self, step: Step, computing: Callable[[], None] = ignore_computing, following: Following = nothing_follows
    ) -> StepResult:
        """See `Engine.step`. Decode steps that run as graphs are followed by the next step (`NextStep`).

        Raises:
            OutOfDeviceMemory: the device has no room for a batch's intermediate values.
            EngineFailure: the device failed; the engine's state is no longer known.
        """
        start = time.perf_counter()
        use_device(self._spec.device)  # in this thread
        try:
            self._decoder.computing = computing
            if self._next is None or not self._next.take(step):
                if len(step.clear_pages):
                    computing()
                self._begin(step)
            answers = [self._run(step, at, following) for at in range(len(step.batches))]
            self._decoder.finish(self._pools)
        except TartletError:
            raise
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise self._no_memory() from error
        except RuntimeError as error:
            if "can't allocate memory" in str(error):  # torch has no type for it on a CPU
                raise self._no_memory() from error
            raise EngineFailure(detail=str(error)) from error
        return StepResult(
            number=step.number,
            results=tuple(result for result, _ in answers),
            computed_tokens=sum(tokens for _, tokens in answers),
            device_s=time.perf_counter() - start,
        )

    def _begin(self, step: Step) -> None:
        """Clear and change what a step wants cleared and changed before its batches."""
        host = self._host
        if host is not None:
            host.copy_out(step.swaps)
            host.wait_for(step.clear_pages)
        self._pools.clear_pages(step.clear_pages)
        if host is not None:
            host.copy_in(step.swaps)
        self._pools.clear_embeds(step.clear_embeds)
        self._pools.clear_slots(step.clear_slots)
        self._pools.tables.change(step.tables, self._pools.position)
        if host is not None:
            host.wait_for_step(step, self._pools.tables)
        self._poisoned.difference_update(step.reset_lanes.tolist())

    def _run(self, step: Step, at: int, following: Following) -> tuple[BatchResult, int]:
        batch = step.batches[at]
        if batch.kind not in _WITH_DECODER:
            self._decoder.finish(self._pools)
        if self._next is None:
            return HANDLERS[batch.kind](batch, self._resources)
        with self._next.looked_for(step, at, following):
            return HANDLERS[batch.kind](batch, self._resources)

    def _no_memory(self) -> OutOfDeviceMemory:
        return OutOfDeviceMemory(device=self._spec.device, asked_bytes="more", free_bytes=_free(self._spec))


def _free(spec: EngineSpec) -> int:
    if spec.device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(spec.device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
