"""`FakeEngine`: a small, real engine without torch, for tests and for a first look without a model.

It keeps the rules of a backend: `forward` as in docs/abi.md (columns, valid bits, mask bits, positions, masks,
okv_offset), a failed command poisons its lane, commands that read ended slots or embeds are skipped, and every command
is answered. Within a batch it reads all embeds and slots before it writes any, as a tensor program does. So a scheduler
that puts a reader and its writer into one batch gets other text. Options add time to steps and make commands fail.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from tartlet_common.engine.spec import AdapterSpec, EngineSpec, with_adapters
from tartlet_common.engine.step import Batch, BatchResult, Step, StepResult
from tartlet_common.errors.registry import OutOfDeviceMemory
from tartlet_worker.engine import Following, ignore_computing, nothing_follows
from tartlet_worker.fake import model
from tartlet_worker.fake.adapters import FakeAdapters, adapter_named
from tartlet_worker.fake.handlers import HANDLERS, Answers
from tartlet_worker.fake.state import SLOT_BYTES, FakeOptions, FakeState
from tartlet_worker.grammar import optional

if TYPE_CHECKING:
    from tartlet_worker.grammar.grammars import Grammars


class FakeEngine:
    """An engine whose next token is a function of the visible (token, position) columns.

    Raises:
        OutOfDeviceMemory: its pages don't fit into memory.

    Example:
        >>> engine = FakeEngine(FakeOptions(page_size=4, num_pages=8))
        >>> engine.spec.family, engine.spec.vocab_size
        ('fake', 260)
    """

    def __init__(self, options: FakeOptions, sleep: Callable[[float], None] = time.sleep) -> None:
        self._options, self._sleep = options, sleep
        self._spec = with_adapters(_spec(options), _adapters(options.adapters), live=options.live_adapters)
        asked, memory = options.num_pages * options.page_size * SLOT_BYTES, psutil.virtual_memory()
        try:
            if asked > memory.total:
                raise MemoryError  # a kernel that overcommits doesn't
            self.state = FakeState(options)
        except MemoryError as e:
            raise OutOfDeviceMemory(device="cpu", asked_bytes=asked, free_bytes=memory.available) from e
        grammar = optional.load(model.tokenizer_json(), model.VOCAB_SIZE, self._spec.stop_tokens)
        self._grammars: Grammars | None = None
        self.state.adapters = {adapter.number: adapter for adapter in self._spec.adapters}
        self._adapters = FakeAdapters(self.state) if options.live_adapters else None
        if grammar is not None:
            self._grammars, self.state.matchers = grammar
            self._spec = replace(self._spec, traits=(*self._spec.traits, optional.TRAIT))

    @property
    def spec(self) -> EngineSpec:
        """Facts for Hello."""
        return self._spec

    @property
    def adapters(self) -> FakeAdapters | None:
        """See `Engine.adapters`."""
        return self._adapters

    @property
    def grammars(self) -> Grammars | None:
        """See `Engine.grammars`."""
        return self._grammars

    def tokenizer_json(self) -> bytes:
        """Return the tokenizer: one token for each byte, and four special tokens."""
        return model.tokenizer_json()

    def reset(self, keep: Sequence[int] = ()) -> None:
        """See `Engine.reset`."""
        self.state.reset(keep)

    def step(
        self, step: Step, computing: Callable[[], None] = ignore_computing, following: Following = nothing_follows
    ) -> StepResult:
        """Run the batches in order. Nothing is begun ahead, so `following` isn't asked.

        Raises:
            EngineBroken: a command embedded `break_token`.
        """
        start = time.perf_counter()
        self.state.clear(step)
        self.state.tokens = 0
        results = tuple(self._run(batch) for batch in step.batches)
        added_s = self._options.step_s + self._options.token_s * self.state.tokens
        if added_s > 0:
            computing()
            self._sleep(added_s)
        return StepResult(step.number, results, self.state.tokens, time.perf_counter() - start)

    def _run(self, batch: Batch) -> BatchResult:
        out = Answers(len(batch.lane))
        HANDLERS[batch.kind](self.state, batch, out)
        return out.finish()


def _spec(o: FakeOptions) -> EngineSpec:
    tokenizer = model.tokenizer_json()
    return EngineSpec(
        model=o.model,
        model_digest=hashlib.sha256(f"fake {o.seed}".encode()).hexdigest(),
        family="fake",
        dtype="float32",
        device="cpu",
        page_size=o.page_size,
        num_pages=o.num_pages,
        num_embeds=o.num_embeds,
        num_slots=o.num_slots,
        vocab_size=model.VOCAB_SIZE,
        max_position=o.max_position,
        max_batch_tokens=o.max_batch_tokens,
        max_batch_commands=o.max_batch_commands,
        top_k_limit=model.VOCAB_SIZE,
        logprobs_limit=o.logprobs_limit,
        kv_bytes_per_token=14,
        host_pages=o.host_pages,
        host_page_ns=1000 if o.host_pages else 0,
        tokenizer_digest=hashlib.sha256(tokenizer).hexdigest(),
        stop_tokens=(model.EOS,),
        bos_token=None,
        chat_template=model.CHAT_TEMPLATE,
        batch_invariant=True,
        description="Computes no model: its tokens are a function of the tokens before them.",
        version="1",
        license="MIT",
    )


def _adapters(names: Iterable[str]) -> list[AdapterSpec]:
    return [adapter_named(name) for name in sorted(names)]
