"""What the fake engine holds: options, pages, embeds and token slots as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tartlet_common.engine import defaults
from tartlet_common.engine.spec import AdapterSpec
from tartlet_common.engine.step import Step
from tartlet_worker.history import Histories
from tartlet_worker.page_tables import PageTables

if TYPE_CHECKING:
    from tartlet_worker.grammar.matchers import Matchers

SLOT_BYTES: Final = 14
"""Bytes of a page for each token, as `FakeState.reset` makes them."""


class EngineBroken(Exception):
    """Raised by `FakeEngine.step` on `break_token`. It stands for a fault of the device."""


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """How a fake engine is set up."""

    model: str = "fake"
    page_size: int = defaults.PAGE_SIZE
    num_pages: int = 4096
    num_embeds: int = defaults.NUM_EMBEDS
    num_slots: int = defaults.NUM_SLOTS
    max_position: int = 1 << 20
    max_batch_tokens: int = defaults.MAX_BATCH_TOKENS
    max_batch_commands: int = defaults.MAX_BATCH_COMMANDS
    logprobs_limit: int = defaults.LOGPROBS_LIMIT
    seed: int = 0  # another seed is another model
    adapters: tuple[str, ...] = ()  # names; under each, tokens are other than without
    live_adapters: bool = False  # adapters come and go
    host_pages: int = 0  # of host memory, for the pages of suspended programs
    step_s: float = 0.0  # time added to every step
    token_s: float = 0.0  # and to every token that goes through the layers
    fail_token: int = -1  # embedding this token id fails its command (EngineFailure)
    break_token: int = -1  # embedding this token id breaks the engine


class FakeState:
    """The pools of a fake engine, its poisoned lanes, and the tokens of its current step."""

    def __init__(self, options: FakeOptions) -> None:
        self.options = options
        self.matchers: Matchers | None = None
        self.adapters: dict[int, AdapterSpec] = {}  # by number
        pages = (options.num_pages, options.page_size)
        self.kv = np.zeros(pages, np.uint64)  # [P, page] what each slot adds to a query's sum
        self.pos = np.zeros(pages, np.int32)  # [P, page]
        self.written = np.zeros(pages, np.bool_)  # [P, page]
        self.hidden = np.zeros(pages, np.bool_)  # [P, page] mask_kvpage's bits
        self.reset()

    def reset(self, keep: Sequence[int] = ()) -> None:
        """Forget everything but what the pages in `keep` hold."""
        o = self.options
        others = np.ones(o.num_pages, np.bool_)
        others[[*keep]] = False
        for values in self._of_pages():
            values[others] = 0
        self.host = [np.zeros((o.host_pages, o.page_size), a.dtype) for a in self._of_pages()]
        self.emb = np.zeros(o.num_embeds, np.uint64)
        self.emb_pos = np.zeros(o.num_embeds, np.int32)
        self.emb_ended = np.zeros(o.num_embeds, np.bool_)
        self.slot = np.zeros(o.num_slots, np.int32)
        self.slot_ended = np.zeros(o.num_slots, np.bool_)
        self.tables = PageTables(o.page_size)
        self.histories = Histories()
        if self.matchers is not None:
            self.matchers.forget(range(o.num_slots))
        self.poisoned: set[int] = set()
        self.tokens = 0  # through the layers, this step

    def _of_pages(self) -> tuple[npt.NDArray[Any], ...]:
        return self.kv, self.pos, self.written, self.hidden

    def clear(self, step: Step) -> None:
        """Clear what the step says changed hands, change tables, and forget the lanes that the step resets."""
        swaps = step.swaps
        for table, host in zip(self._of_pages(), self.host, strict=True):
            host[swaps.out_host] = table[swaps.out_page]
            table[step.clear_pages] = 0
            table[swaps.in_page] = host[swaps.in_host]
        for embeds in (self.emb, self.emb_pos, self.emb_ended):
            embeds[step.clear_embeds] = 0
        self.slot[step.clear_slots] = 0
        self.slot_ended[step.clear_slots] = False
        self.tables.change(step.tables)
        self.tables.changed.clear()
        self.histories.forget(step.clear_slots)
        if self.matchers is not None:
            self.matchers.forget(step.clear_slots)
        self.poisoned.difference_update(step.reset_lanes.tolist())
