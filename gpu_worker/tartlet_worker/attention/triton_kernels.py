"""Triton kernels of attention over pages: one that attends to a run of columns, and one that joins runs.

A kernel's program works on one tile: the query rows of one key head, of some tokens of one command. Row r of a tile is
query head `r % group` of token `r // group`. Columns are read in blocks of `BLOCK`, counted from column 0, and blocks
are added in order within runs of `RUN` columns, and runs in order. So the sum of a row doesn't depend on other rows,
on the tile's height, or on who joins the runs: one program in turn, or `join_runs` after programs side by side.

Softmax is in powers of two. A row's state is its largest score, the sum of its weights and the weighted sum of values.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 64
"""Columns of a block."""
RUN = 512
"""Columns of a run: what one program of a long decode step reads."""
TILE_FIELDS = 6
"""Integers that describe a tile: command, its first token, its tokens, columns to read, row of pages, mask offset."""


WIDE_BYTES = 1024
"""Bytes of a key (see `key_bytes`) from which a key is wide: three blocks of such keys and values fit no longer."""


def key_bytes(head_dim: int, number_bytes: int) -> int:
    """Return the bytes that `attend` takes for a key.

    Example:
        >>> key_bytes(128, 4), key_bytes(129, 4), key_bytes(256, 2)
        (512, 1024, 512)
    """
    return max(16, 1 << (head_dim - 1).bit_length()) * number_bytes


def stages(head_dim: int, number_bytes: int) -> int:
    """Return Triton's `num_stages` for `attend`.

    With three stages, keys and values of 256 float32 numbers take more than the 227 KiB of shared memory that a program
    may have on an H100.

    Example:
        >>> stages(256, 4), stages(256, 2), stages(128, 4)
        (2, 3, 3)
    """
    return 2 if key_bytes(head_dim, number_bytes) >= WIDE_BYTES else 3


@triton.jit
def merge(top, total, sums, other_top, other_total, other_sums):
    """Join the states of two runs of columns, float32 [rows], [rows] and [rows, dims] each."""
    best = tl.maximum(top, other_top)
    safe = tl.where(best == float("-inf"), 0.0, best)  # a row that saw nothing so far
    mine = tl.exp2(top - safe)
    theirs = tl.exp2(other_top - safe)
    total = total * mine + other_total * theirs
    sums = sums * mine[:, None] + other_sums * theirs[:, None]
    return best, total, sums


@triton.jit
def first_seen(lowest, window, over_table, BLOCK: tl.constexpr):
    """Return the first column, of a block, that a tile whose first token is at `lowest` sees through a window.

    Columns and tokens of a table are in order. Those of a list aren't, so a list is read from its beginning.
    """
    return tl.where(over_table, tl.maximum(lowest - window + 1, 0) // BLOCK * BLOCK, 0)


@triton.jit(do_not_specialize=["table_width", "listed_width", "window", "runs"])
def attend(
    q, keys, values, out, run_top, run_total, run_sums,
    tiles, query_position, listed, positions, tables, masks,
    table_width, listed_width, window, scale, runs,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr, FIELDS: tl.constexpr,
    WINDOW: tl.constexpr, MASKS: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Attend with one tile to all its columns, or with SPLIT to one run of them.

    Args:
        q, out: [T, HEADS, DIM].
        keys, values: [pages, KV_HEADS, PAGE, DIM] of one layer.
        run_top, run_total: [tiles, KV_HEADS, runs, ROWS] float32, and run_sums [..., ROWS, DIMS]: states with SPLIT.
        tiles: [tiles, FIELDS] int32. A row of pages r >= 0 is `listed[r]`; r < 0 is `tables[-1 - r]`, whose columns
            are at the positions of their own numbers. A mask offset below 0 is no mask.
        query_position: [T] int32.
        listed: [R, listed_width] int32 pages, and positions [R, listed_width * PAGE] int32.
        tables: [tables, table_width] int32 pages.
        masks: bytes, [tokens, listed_width * PAGE] from each mask's offset on (offsets count rows).
        window: of the layer, in tokens, with WINDOW.
        scale: of the scores, times log2(e).
        DIMS: DIM, up to a power of two. WIDE: multiply in float32 (for Triton's interpreter).
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    told = tiles + tile * FIELDS
    first = tl.load(told + 1)
    count = tl.load(told + 2)
    columns = tl.load(told + 3)
    source = tl.load(told + 4)
    mask_row = tl.load(told + 5)
    over_table = source < 0
    row_of_list = tl.where(over_table, 0, source).to(tl.int64)
    listed_columns = tl.where(over_table, 0, columns)
    row_of_pages = listed + row_of_list * listed_width
    if over_table:
        row_of_pages = tables + (-1 - source).to(tl.int64) * table_width

    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.arange(0, ROWS)
    token = row // GROUP
    alive = (token < count) & (row < (ROWS // GROUP) * GROUP)
    dim = tl.arange(0, DIMS)
    of_query = (first + token).to(tl.int64) * (HEADS * DIM) + (head * GROUP + row % GROUP) * DIM
    there = alive[:, None] & (dim < DIM)[None, :]
    query = tl.load(q + of_query[:, None] + dim[None, :], mask=there, other=0.0)
    at = tl.load(query_position + first + token, mask=alive, other=-1)
    if WIDE:
        query = query.to(tl.float32)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIMS], tl.float32)
    begin = 0
    end = columns
    least = 0
    if WINDOW:
        lowest = tl.load(query_position + first)
        least = first_seen(lowest, window, over_table, BLOCK)
        begin = least // RUN * RUN
    if SPLIT:
        run = tl.program_id(2) * RUN
        begin = tl.maximum(begin, run)  # past the end of a run that lies before the window
        end = tl.minimum(columns, run + RUN)
    for start in range(begin, end, RUN):
        here_top = tl.full([ROWS], float("-inf"), tl.float32)
        here_total = tl.zeros([ROWS], tl.float32)
        here_sums = tl.zeros([ROWS, DIMS], tl.float32)
        for low in range(tl.maximum(start, least), tl.minimum(start + RUN, end), BLOCK):
            column = low + tl.arange(0, BLOCK)
            inside = column < columns
            # No branch may hold a load here: Triton reads blocks ahead, and past a run's end it takes the other branch.
            page = tl.load(row_of_pages + column // PAGE, mask=inside, other=0).to(tl.int64)
            written = row_of_list * listed_width * PAGE + column
            position = tl.load(positions + written, mask=column < listed_columns, other=0)
            position = tl.where(over_table, column, position)
            place = ((page * KV_HEADS + head) * PAGE + column % PAGE) * DIM
            seen = (position[None, :] <= at[:, None]) & inside[None, :]
            if MASKS:
                masked = mask_row + tl.zeros([ROWS], tl.int32) >= 0
                line = (mask_row + token).to(tl.int64) * listed_width * PAGE
                marked = (alive & masked)[:, None] & inside[None, :]
                allowed = tl.load(masks + line[:, None] + column[None, :], mask=marked, other=0)
                seen = tl.where(masked[:, None], marked & (allowed != 0), seen)
            if WINDOW:
                seen = seen & (at[:, None] - position[None, :] < window)
            readable = inside[None, :] & (dim < DIM)[:, None]
            key = tl.load(keys + place[None, :] + dim[:, None], mask=readable, other=0.0)  # [DIMS, BLOCK]
            value = tl.load(values + place[:, None] + dim[None, :], mask=tl.trans(readable), other=0.0)
            if WIDE:
                key = key.to(tl.float32)
                value = value.to(tl.float32)
            score = tl.dot(query, key, input_precision="ieee") * scale
            score = tl.where(seen, score, float("-inf"))
            best = tl.maximum(here_top, tl.max(score, 1))
            safe = tl.where(best == float("-inf"), 0.0, best)
            weight = tl.exp2(score - safe[:, None])
            fade = tl.exp2(here_top - safe)
            here_total = here_total * fade + tl.sum(weight, 1)
            here_sums = here_sums * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
            here_top = best
        top, total, sums = merge(top, total, sums, here_top, here_total, here_sums)

    if SPLIT:
        state = ((tile.to(tl.int64) * KV_HEADS + head) * runs + tl.program_id(2)) * ROWS + row
        read = row < tl.where(begin < end, ROWS, 0)  # `join_runs` reads no others
        tl.store(run_top + state, top, mask=read)
        tl.store(run_total + state, total, mask=read)
        tl.store(run_sums + state[:, None] * DIMS + dim[None, :], sums, mask=read[:, None] & (dim < DIMS)[None, :])
    else:
        result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + of_query[:, None] + dim[None, :], result.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["window", "runs"])
def join_runs(
    out, run_top, run_total, run_sums, tiles, query_position, window, runs,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, RUN: tl.constexpr, FIELDS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Join the runs of one tile and key head in order, and write the result. Arguments as `attend`'s."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(tiles + tile * FIELDS + 1)
    count = tl.load(tiles + tile * FIELDS + 2)
    columns = tl.load(tiles + tile * FIELDS + 3)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.arange(0, ROWS)
    token = row // GROUP
    dim = tl.arange(0, DIMS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIMS], tl.float32)
    begin = 0
    if WINDOW:
        source = tl.load(tiles + tile * FIELDS + 4)
        begin = first_seen(tl.load(query_position + first), window, source < 0, BLOCK) // RUN
    for run in range(begin, tl.cdiv(columns, RUN)):
        state = ((tile.to(tl.int64) * KV_HEADS + head) * runs + run) * ROWS + row
        top, total, sums = merge(
            top, total, sums, tl.load(run_top + state), tl.load(run_total + state),
            tl.load(run_sums + state[:, None] * DIMS + dim[None, :]),
        )  # fmt: skip
    alive = (token < count) & (row < (ROWS // GROUP) * GROUP)
    of_query = (first + token).to(tl.int64) * (HEADS * DIM) + (head * GROUP + row % GROUP) * DIM
    result = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    there = alive[:, None] & (dim < DIM)[None, :]
    tl.store(out + of_query[:, None] + dim[None, :], result.to(out.dtype.element_ty), mask=there)
