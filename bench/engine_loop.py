"""The plain loops that `bench engine` compares: `Engine.step` and nothing else, and transformers' `generate`.

`BareLoop` is also the baseline that `bench overhead` compares whole programs with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.product.common import EmbedTxt, Forward, Sample, Step
from bench.product.worker import Engine


@dataclass(frozen=True, slots=True)
class Timing:
    """One run: seconds for the prompt, seconds for the rest, and what was generated."""

    prefill_s: float
    decode_s: float
    cpu_s: float  # of this process over both; other work on the machine changes it least
    tokens: list[list[int]]  # [batch][new_tokens]

    @property
    def total_s(self) -> float:
        """Seconds from prompt to last token."""
        return self.prefill_s + self.decode_s

    @property
    def per_token_s(self) -> float:
        """Seconds an output token after the first."""
        return self.decode_s / max(1, len(self.tokens[0]) - 1)


class BareLoop:
    """Greedy text of a batch of prompts by calls of `Engine.step` and nothing else.

    Each sequence has a lane, pages, two embeds a prompt token and one token slot; a decode step is one embed, one
    forward and one sample batch, as control would send it. Loops of the same sizes can share an engine, each at a
    `place` of its own from 0: then `begin` and `go_on` take the place of `run`.
    """

    def __init__(self, engine: Engine, batch: int, prompt: int, new_tokens: int, place: int = 0) -> None:
        self._engine, self._batch, self._prompt, self._new = engine, batch, prompt, new_tokens
        size = engine.spec.page_size
        self._per = -(-(prompt + new_tokens) // size)  # pages a sequence
        needed = {"num_pages": batch * self._per, "num_embeds": batch * (prompt + 2), "num_slots": batch}
        for name, count in needed.items():
            if getattr(engine.spec, name) < (place + 1) * count:
                raise ValueError(f"the engine has {getattr(engine.spec, name)} {name}, a loop needs {count}")
        self._lane = np.arange(batch, dtype=np.uint32) + np.uint32(place * batch)
        self._pages = np.arange(batch * self._per, dtype=np.int32) + place * batch * self._per
        self._first_embed, self._first_slot = place * needed["num_embeds"], place * batch
        self._number = self._length = 0

    def run(self, prompts: Sequence[Sequence[int]]) -> Timing:
        """Generate from prompts [batch][prompt]."""
        self._engine.reset()
        cpu = time.process_time()
        start = time.perf_counter()
        tokens = [self.begin(prompts)]
        middle = time.perf_counter()
        tokens.extend(self.go_on() for _ in range(self._new - 1))
        end = time.perf_counter()
        return Timing(middle - start, end - middle, time.process_time() - cpu, np.stack(tokens, 1).tolist())

    def begin(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Compute prompts [batch][prompt] in one step. Returns [batch] tokens."""
        self._length = self._prompt
        return self._step(np.asarray(prompts, np.int32), 0)

    def go_on(self) -> np.ndarray:
        """Run one decode step. Returns [batch] tokens."""
        self._length += 1
        return self._step(None, self._length - 1)

    def sample(self, embed: np.ndarray, slot: np.ndarray, *, first: bool) -> Sample:
        """Return the greedy sample batch of a step: [batch] output embeds and token slots. `first`: of a prompt."""
        b = self._batch
        return Sample(
            lane=self._lane,
            embed=embed,
            slot=slot,
            temperature=np.zeros(b, np.float32),
            top_k=np.zeros(b, np.int32),
            top_p=np.ones(b, np.float32),
            min_p=np.zeros(b, np.float32),
            seed=np.zeros(b, np.uint64),
            draw=np.zeros(b, np.uint32),
            stop=np.zeros(0, np.int32),
            stop_indptr=np.zeros(b + 1, np.int32),
        )

    def _step(self, prompts: np.ndarray | None, position: int) -> np.ndarray:
        """One step from `position` on: the prompts, or the token in each sequence's slot. Returns [batch] tokens."""
        b = self._batch
        n = 1 if prompts is None else self._prompt
        indptr = np.arange(b + 1, dtype=np.int32)
        embed = np.arange(b * n, dtype=np.int32) + self._first_embed
        last = np.arange(b, dtype=np.int32) + self._first_embed + b * self._prompt
        positions = np.tile(np.arange(position, position + n, dtype=np.int32), b)
        none = np.full(b * n, -1, np.int32)
        slot = np.arange(b, dtype=np.int32) + self._first_slot
        pages = -(-(position + n) // self._engine.spec.page_size)  # that hold something by the end of the step
        listed = self._pages.reshape(b, self._per)[:, :pages].reshape(-1)
        batches = (
            EmbedTxt(
                lane=self._lane,
                indptr=indptr * n,
                embed=embed,
                token=none if prompts is None else prompts.reshape(-1),
                slot=slot if prompts is None else none,
                position=positions,
            ),
            Forward(
                lane=self._lane,
                ikv=listed,
                ikv_indptr=indptr * pages,
                iemb=embed,
                iemb_indptr=indptr * n,
                okv=listed,
                okv_indptr=indptr * pages,
                okv_offset=np.full(b, position, np.int32),
                oemb=last,
                oemb_indptr=indptr,
                mask_bits=np.zeros(0, np.uint8),
                mask_indptr=np.zeros(b + 1, np.int32),
            ),
            self.sample(last, slot, first=prompts is not None),
        )
        self._number += 1
        result = self._engine.step(Step(self._number, batches))
        for answer in result.results:
            if answer.status.any():
                raise RuntimeError(f"a command of the loop did not run: {answer.status.tolist()} {answer.detail}")
        return result.results[2].token


class TransformersLoop:
    """transformers' `generate` on the same checkpoint."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Timing:
        """Generate greedily; `prefill_s` is not told apart."""
        ids = torch.tensor(prompts)
        cpu = time.process_time()
        start = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        end = time.perf_counter()
        return Timing(0.0, end - start, time.process_time() - cpu, out[:, ids.shape[1] :].tolist())
