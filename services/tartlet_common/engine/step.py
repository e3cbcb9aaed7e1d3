"""One engine step in columns: the commands that control sends to a worker, and the worker's results.

A `Step` is an ordered list of batches, each of one kind. A worker executes the batches in order, so one step holds a
whole decode iteration (embed, forward, sample) of every queue. All ids are physical. Variable-length fields are CSR:
`x` of shape [total] with `x_indptr` of shape [B + 1]. Every field is a numpy array, so that it crosses the process
boundary as bytes (`step_codec`), one column a field (docs/architecture.md, invariant 1).

`lane[b]` is the command queue of command `b`: when a command fails, the worker refuses the later commands of the same
lane until a `Step` lists the lane in `reset_lanes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

EMPTY_I32: I32 = np.zeros(0, np.int32)
EMPTY_U32: U32 = np.zeros(0, np.uint32)
HOLE: Final = -1
"""The row of a table whose page was dropped."""
TABLES_SINCE: Final = 2
"""First version of the protocol with page tables, their masks, and what `Sample` takes beside its parameters."""


class Kind(IntEnum):
    """The kind of a batch; it decides which handler of the worker runs the batch."""

    EMBED_TXT = 1
    FORWARD = 2
    COPY_KVPAGE = 3
    MASK_KVPAGE = 4
    GET_NEXT_DIST = 5
    SAMPLE = 6
    MASK_TABLE = 7


class MissingCall(ImportError):
    """Names the calls that a module lacks. The module can't be imported without them."""

    def __init__(self, where: str, missing: list[str]) -> None:
        super().__init__(
            f"{where} lacks {', '.join(missing)}: add each of them there (CONTRIBUTING.md: a new engine call)"
        )
        self.missing = missing


def check_covers(table: Collection[int], needed: Iterable[IntEnum], where: str) -> None:
    """Check that a module's table of calls has them all; each module with such a table does so when it is imported.

    Raises:
        MissingCall: some are not in the table.
    """
    missing = [member.name for member in needed if member not in table]
    if missing:
        raise MissingCall(where, missing)


class Status(IntEnum):
    """How one command of a batch ended on the worker."""

    OK = 0
    SKIPPED = 1  # the command read an ended slot or embed
    FAILED = 2  # this command failed; its lane is poisoned
    REFUSED = 3  # the command's lane was poisoned before the command ran


@dataclass(frozen=True, slots=True)
class EmbedTxt:
    """Embed tokens at positions: B commands over T tokens in all."""

    lane: U32  # [B]
    indptr: I32  # [B+1] into the T tokens
    embed: I32  # [T] destination embed
    token: I32  # [T] token id, or -1 where `slot` names the source
    slot: I32  # [T] source token slot, or -1
    position: I32  # [T]
    kind = Kind.EMBED_TXT


@dataclass(frozen=True, slots=True)
class Forward:
    """`forward` of the paper's Table 1 for B commands.

    Token i of a command's iemb goes to KV slot `okv_offset + i` of the command's okv pages, if it has any. The oemb
    receive the last len(oemb) tokens. `mask_bits` holds the masks: for a command with a mask, the row-major booleans
    [len(iemb), len(ikv) * page_size + len(iemb)], packed little-endian and padded to whole bytes. `mask_indptr` counts
    bytes; an empty range means no mask.

    A command over a page table has its table's number in `table` and lists no pages. Its token i goes to slot
    `okv_offset + i` of the table, it sees the slots before `okv_offset`, and a mask has a column for each of these
    slots and for each token. `table` is empty if no command of the batch uses a table.

    `adapter` names the LoRA adapter under which a command's tokens are computed; it is empty if no command has one.
    """

    lane: U32  # [B]
    ikv: I32  # pages read
    ikv_indptr: I32  # [B+1]
    iemb: I32
    iemb_indptr: I32  # [B+1]
    okv: I32  # pages written
    okv_indptr: I32  # [B+1]
    okv_offset: I32  # [B] tokens
    oemb: I32
    oemb_indptr: I32  # [B+1]
    mask_bits: U8
    mask_indptr: I32  # [B+1] bytes
    table: I32 = field(default_factory=lambda: EMPTY_I32)  # [B] number, -1 for page lists; or empty
    adapter: U32 = field(default_factory=lambda: EMPTY_U32)  # [B] number, 0 for none; or empty
    kind = Kind.FORWARD


@dataclass(frozen=True, slots=True)
class CopyKvPage:
    """Copy `size` tokens (KV, positions, valid and mask bits) from one page to another."""

    lane: U32  # [B]
    src: I32  # [B] page
    dst: I32  # [B] page
    src_offset: I32  # [B] tokens
    dst_offset: I32  # [B] tokens
    size: I32  # [B] tokens
    kind = Kind.COPY_KVPAGE


@dataclass(frozen=True, slots=True)
class MaskKvPage:
    """Set the mask bits of a page: bit i of `bits` hides token i (reversible)."""

    lane: U32  # [B]
    page: I32  # [B]
    bits: U32  # [B]
    kind = Kind.MASK_KVPAGE


@dataclass(frozen=True, slots=True)
class MaskTable:
    """Hide slots of page tables from later commands, or show them again. The commands of a batch apply in order.

    A table keeps its own marks, so a row that tables share may be hidden in one of them.
    """

    lane: U32  # [B]
    table: I32  # [B] number
    first: I32  # [B] slot
    count: I32  # [B] slots
    hidden: U8  # [B] 1 hides, 0 shows
    kind = Kind.MASK_TABLE


@dataclass(frozen=True, slots=True)
class GetNextDist:
    """Top-K next-token distributions of B commands over E embeds in all."""

    lane: U32  # [B]
    indptr: I32  # [B+1] into the E embeds
    embed: I32  # [E]
    top_k: I32  # [B] distributions are cut to this many tokens
    kind = Kind.GET_NEXT_DIST


@dataclass(frozen=True, slots=True)
class Sample:
    """For each of B embeds, sample one token into a token slot, on the device."""

    lane: U32  # [B]
    embed: I32  # [B] source
    slot: I32  # [B] destination token slot
    temperature: F32  # [B] 0 is greedy
    top_k: I32  # [B] 0 is off
    top_p: F32  # [B] 1 is off
    min_p: F32  # [B] 0 is off
    seed: U64  # [B]
    draw: U32  # [B] stream number
    stop: I32  # stop tokens
    stop_indptr: I32  # [B+1]
    with_options: I32 = field(default_factory=lambda: EMPTY_I32)  # [R] commands that bring options, ascending
    options: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))  # abi.SAMPLE_OPTIONS and lists of each
    options_indptr: I32 = field(default_factory=lambda: EMPTY_I32)  # [R+1] bytes; empty if R is 0
    with_bytes: I32 = field(default_factory=lambda: EMPTY_I32)  # [W] commands that want their token's bytes, ascending
    kind = Kind.SAMPLE


Batch = EmbedTxt | Forward | CopyKvPage | MaskKvPage | GetNextDist | Sample | MaskTable


@dataclass(frozen=True, slots=True)
class TableChanges:
    """C changes of page tables, in order: table := the first `keep` rows of source, then new rows.

    A row is a physical page, or `HOLE` where the page was dropped: nothing sees its slots or writes them. A table
    without rows doesn't exist, and its number may be used again.
    """

    table: I32  # [C] number
    source: I32  # [C] number; the table itself to extend or to cut it
    keep: I32  # [C] rows
    indptr: I32  # [C+1] into the new rows
    rows: I32


NO_CHANGES = TableChanges(EMPTY_I32, EMPTY_I32, EMPTY_I32, np.zeros(1, np.int32), EMPTY_I32)


@dataclass(frozen=True, slots=True)
class Swaps:
    """Pages that go to the worker's host memory and come back, in one transfer for each direction.

    All that a query can see of a page goes with it: keys, values, positions and mask bits.
    """

    out_page: I32  # [O] pages to copy
    out_host: I32  # [O] host pages that take them, each named once
    in_host: I32  # [I] host pages to copy back
    in_page: I32  # [I] pages that take them, each named once


NO_SWAPS = Swaps(EMPTY_I32, EMPTY_I32, EMPTY_I32, EMPTY_I32)


@dataclass(frozen=True, slots=True)
class Step:
    """The commands that control sends an engine in one frame.

    The engine copies pages out (`swaps`), clears (`clear_*`), copies pages in, changes tables, then resets lanes
    (`reset_lanes`), then runs the batches in order.
    """

    number: int  # counted by control per engine connection
    batches: tuple[Batch, ...]
    clear_pages: I32 = field(default_factory=lambda: EMPTY_I32)  # newly allocated: zero everything
    clear_embeds: I32 = field(default_factory=lambda: EMPTY_I32)
    clear_slots: I32 = field(default_factory=lambda: EMPTY_I32)
    reset_lanes: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))
    traceparent: str = ""  # W3C trace context of the step's span, "" when nothing is traced
    tables: TableChanges = NO_CHANGES
    swaps: Swaps = NO_SWAPS


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The results of one batch of B commands, in its order. Columns that its kind doesn't have are empty."""

    status: U8  # [B] Status
    error: U32  # [B] error number where FAILED, else 0
    token: I32  # [B] Sample: the token, -1 where not OK
    ended: U8  # [B] Sample: 1 if the token was a stop token
    logprob: F32  # [B] Sample: log-probability of the token under the unfiltered distribution
    dist_indptr: I32  # [E+1] GetNextDist: into dist_*; E = embeds of the batch. Sample: [R+1], of `with_options`
    dist_token: I32
    dist_prob: F32  # descending within an embed. Sample: log-probabilities of the best, then of the named tokens
    detail: tuple[str, ...] = ()  # [number of FAILED] texts, in order
    text: U8 = field(default_factory=lambda: np.zeros(0, np.uint8))  # Sample: bytes of tokens
    text_indptr: I32 = field(default_factory=lambda: EMPTY_I32)  # [W+1], of `with_bytes`; empty if W is 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one `Step`."""

    number: int
    results: tuple[BatchResult, ...]
    computed_tokens: int  # tokens that went through the model's layers
    device_s: float  # seconds of engine time
