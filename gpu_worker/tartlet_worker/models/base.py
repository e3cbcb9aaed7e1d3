"""The interface of a decoder: what a pass through the layers is given, and what a decoder does with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tartlet_common.engine.step import EMPTY_U32
from tartlet_worker.attention.base import AttentionBatch
from tartlet_worker.checkpoints.model_config import ModelConfig
from tartlet_worker.csr import I64, Ints
from tartlet_worker.pools import Pools
from tartlet_worker.sampling.base import F32, SampleParams, Sampler, Targets


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """One pass through the layers: T tokens of B commands."""

    embed: I64  # [T] source embeds
    position: npt.NDArray[np.int32]  # [T]
    page: I64  # [T] page that takes each token's key and value (a scratch page if it isn't stored)
    slot: I64  # [T] and the slot in it
    scratch_pages: int  # how many scratch pages are used
    attention: AttentionBatch
    out_token: I64  # [O] tokens whose last hidden state is kept
    out_embed: I64  # [O] embeds that take them
    adapter: npt.NDArray[np.uint32] = field(default_factory=lambda: EMPTY_U32)  # [T] number, 0 for none; or empty


class Decoder(Protocol):
    """A model's weights, in the layout that this implementation wants, and its pass through the layers."""

    config: ModelConfig
    passes: int
    """Passes through the layers so far."""
    computing: Callable[[], None]
    """Called when the device has begun to compute and this thread needs the interpreter little."""

    def embed(self, pools: Pools, embed: Ints, token: Ints) -> None:
        """Put the embeddings of tokens [N] into embeds [N] of the pool."""

    def run(self, plan: ForwardPlan, pools: Pools) -> None:
        """Pass a plan's tokens through the layers; store keys, values and the output embeds (after the last norm)."""

    def logits(self, pools: Pools, embed: Ints) -> Tensor:
        """Compute the logits [N, vocab] float32 of output embeds [N] of the pool."""

    def sample(
        self,
        pools: Pools,
        embed: Ints,
        params: SampleParams,
        sampler: Sampler,
        into: Targets,
    ) -> tuple[I64, F32]:
        """Sample a token for each of N output embeds; return what `Sampler.sample` returns.

        The caller writes the tokens into their slots. `into` names these slots for decoders that keep tokens on the
        device as well.
        """
        return sampler.sample(self.logits(pools, embed), params)

    def finish(self, pools: Pools) -> None:
        """Compute what was put off, before somebody else uses the pools' tensors. Most decoders put nothing off."""
        return
