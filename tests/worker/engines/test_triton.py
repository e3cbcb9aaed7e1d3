"""Triton's kernels: in its interpreter against gathered pages and float64, and compiled for a GPU without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_worker.attention import triton_kernels, triton_paged
from tartlet_worker.attention.base import AttentionBatch, TableColumns
from tartlet_worker.attention.torch_gather import TorchGather
from tartlet_worker.attention.triton_paged import TritonPaged
from tartlet_worker.pools import FAR
from tartlet_worker.torch_engine.attention_choice import choose
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver, forward_batch
from tests.worker.engines.test_contract import RandomProgram
from tests.worker.engines.test_page_tables import Pair
from tests.worker.families import checkpoint
from tests.worker.numerics import test_numerics as numerics
from tests.worker.seeds import rng as fresh
from tests.worker.triton_rounding import install_rows_alike, to_bf16

CUDA = "cuda" if torch.cuda.is_available() else "cpu"
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else CUDA


def batch_of(seed: str, counts: list[int], contexts: list[int], size: int, *, masks: bool) -> tuple[Any, int]:
    """A batch of commands with these tokens, over these columns in pages of any order, with holes."""
    rng, pages = fresh(seed), [-(-n // size) for n in contexts]
    table = np.zeros((len(counts), max(pages)), np.int32)
    seen = np.full((len(counts), max(pages) * size), FAR, np.int32)
    total = sum(pages) + 1
    ids = rng.permutation(total - 1) + 1
    for b, n in enumerate(pages):
        table[b, :n], ids = ids[:n], ids[n:]
        seen[b, : contexts[b]] = rng.permutation(contexts[b])
        seen[b, rng.integers(0, contexts[b], contexts[b] // 5)] = FAR
    query = np.concatenate([rng.integers(0, c, n) for n, c in zip(counts, contexts, strict=True)]).astype(np.int32)
    allowed = {}
    if masks:
        allowed = {b: (rng.random((counts[b], seen.shape[1])) < 0.4) & (seen[b] < FAR) for b in (0, len(counts) - 1)}
        allowed[0][0] = False  # a query that sees nothing
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return AttentionBatch(indptr, query, table, np.array(pages, np.int32), seen, allowed), total


def both(
    batch: AttentionBatch, total: int, size: int, heads: tuple[int, int, int], window: int | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """What Triton and gathering give, as float32."""
    query_heads, kv_heads, dim = heads
    q = torch.randn(int(batch.query_indptr[-1]), query_heads, dim, dtype=dtype, device=DEVICE)
    kv = torch.randn(2, total, kv_heads, size, dim, dtype=dtype, device=DEVICE)
    mine = TritonPaged(kv_heads, DEVICE, group=query_heads // kv_heads)
    theirs = TorchGather(kv_heads, DEVICE)
    a = mine.run(mine.prepare(batch), q, kv, window)
    b = theirs.run(theirs.prepare(batch), q.float(), kv.float(), window)
    return a.float().cpu(), b.cpu()


def test_the_interpreter_rounds_as_torch_does() -> None:
    bits = fresh("bf16").integers(0, 1 << 32, 100_000, np.uint32)
    values = np.concatenate(
        [bits.view(np.float32), np.array([0.0, -0.0, np.inf, -np.inf, 1.99999, 3.4e38], np.float32)]
    )
    want = torch.from_numpy(values).bfloat16()
    got = torch.from_numpy(to_bf16(values).view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "size", "window", "masks"),
    [((4, 2, 16), 4, None, True), ((7, 1, 48), 3, 40, False), ((6, 2, 24), 16, 30, True), ((2, 2, 80), 1, None, False)],
)
def test_it_gives_what_gathering_gives(
    heads: tuple[int, int, int], size: int, window: int | None, dtype: torch.dtype, *, masks: bool
) -> None:
    batch, total = batch_of(f"triton {heads}", [1, 3, 21, 1], [90, 40, 70, 130], size, masks=masks)
    got, want = both(batch, total, size, heads, window, dtype)
    assert (got - want).abs().max() <= (2e-5 if dtype == torch.float32 else 2e-2)


def test_runs_side_by_side_give_the_bits_of_runs_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, total = batch_of("triton runs", [1, 2], [1500, 700], 16, masks=False)
    said = []
    for tiles in (0, 1 << 30):
        monkeypatch.setattr(triton_paged, "SPLIT_TILES", tiles)
        torch.manual_seed(5)
        got, want = both(batch, total, 16, (4, 2, 16), None, torch.float32)
        assert (got - want).abs().max() <= 2e-5
        said.append(got)
    assert torch.equal(*said)


@pytest.mark.parametrize(("spare", "programs"), [(0, 3), (-1, 1)])
def test_runs_are_side_by_side_only_where_their_states_fit(
    spare: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[tuple[int, ...]] = []

    class Launched:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *_, **__: None

    batch, total = batch_of("triton states", [1, 2], [1500, 700], 16, masks=False)
    states = 4 * 2 * 2 * 3 * 16 * (16 + 2)  # two tiles of 16 rows, two heads, three runs
    monkeypatch.setattr(triton_paged, "SPLIT_BYTES", states + spare)
    for kernel in ("attend", "join_runs"):
        monkeypatch.setattr(triton_paged, kernel, Launched())
    attention, kv = TritonPaged(2, "cpu", group=2), torch.zeros(2, total, 2, 16, 16)
    attention.run(attention.prepare(batch), torch.zeros(3, 4, 16), kv, None)
    assert grids == [(2, 2, programs), (2, 2)][: 2 if programs > 1 else 1]


def test_a_table_of_many_runs_is_read_where_no_lists_were_sent() -> None:
    # A block that is read ahead of its run must not touch the lists, which aren't there.
    q, kv = torch.randn(1, 4, 16, device=DEVICE), torch.randn(2, 82, 2, 16, 16, device=DEVICE)
    attention = TritonPaged(2, DEVICE, group=2)
    batches = over_table(1301, 1, 16, "triton tables")
    got, want = (attention.run(attention.prepare(batch), q, kv, None).cpu() for batch in batches)
    assert torch.equal(got, want)


def over_table(length: int, tokens: int, size: int, seed: str) -> tuple[AttentionBatch, AttentionBatch]:
    """The last tokens of a context, over its table and over the list of the same pages."""
    pages = -(-length // size)
    table = fresh(seed).permutation(pages).astype(np.int32)
    rows = torch.from_numpy(table[None].copy()).to(DEVICE)
    over = TableColumns(np.zeros(1, np.int32), np.full(1, -1), SimpleNamespace(table_rows=lambda: rows))  # type: ignore[arg-type]
    query, indptr = np.arange(length - tokens, length, dtype=np.int32), np.array([0, tokens])
    seen = np.where(np.arange(pages * size) < length, np.arange(pages * size), FAR).astype(np.int32)[None]
    number = np.array([pages], np.int32)
    return (
        AttentionBatch(indptr, query, table[None][:0], number, seen[:0], tables=over),
        AttentionBatch(indptr, query, table[None], number, seen),
    )


EDGES = (1, 2, 63, 64, 65, 276, 277, 278, 511, 512, 513, 789, 1300, 1301, 1302, 9999)
"""Windows around a block, a run and the whole of 1,301 columns. The last token is at 1,300: 277 begin at 1,024."""


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_window_gives_what_gathering_gives_and_pages_before_it_are_not_read(
    tokens: int, monkeypatch: pytest.MonkeyPatch, *, side_by_side: bool
) -> None:
    monkeypatch.setattr(triton_paged, "SPLIT_TILES", 1 << 30 if side_by_side else 0)
    length, size = 1301, 16
    over, listed = over_table(length, tokens, size, "triton windows")
    attention, truth = TritonPaged(1, DEVICE, group=2), TorchGather(1, DEVICE)
    q = torch.randn(tokens, 2, 16, device=DEVICE)
    kv = torch.randn(2, -(-length // size), 1, size, 16, device=DEVICE)
    prepared, wanted = attention.prepare(over), truth.prepare(listed)
    for window in EDGES:
        first = max(0, length - tokens - window + 1) // triton_kernels.BLOCK * triton_kernels.BLOCK
        spoilt = kv.clone()
        spoilt[:, listed.pages[0, : first // size].tolist()] = float("nan")
        got, want = attention.run(prepared, q, spoilt, window), truth.run(wanted, q, kv, window)
        assert (got - want).abs().max() <= 2e-5, window


def test_windows_give_equal_bits_in_turn_and_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    over, _ = over_table(1301, 3, 16, "triton window bits")
    attention = TritonPaged(1, DEVICE, group=2)
    q, kv = torch.randn(3, 2, 16, device=DEVICE), torch.randn(2, 82, 1, 16, 16, device=DEVICE)
    prepared = attention.prepare(over)
    for window in (1, 64, 277, 600, 1301):
        said = []
        for tiles in (0, 1 << 30):
            monkeypatch.setattr(triton_paged, "SPLIT_TILES", tiles)
            said.append(attention.run(prepared, q, kv, window))
        assert torch.equal(*said)


@pytest.mark.parametrize(
    ("bytes_of_key", "rows"), [(triton_kernels.key_bytes(d, 4), r) for d, r in ((128, 64), (200, 16))]
)
def test_wide_keys_have_low_tiles(bytes_of_key: int, rows: int) -> None:
    batch, _ = batch_of("triton wide", [40], [90], 16, masks=False)
    assert TritonPaged(2, "cpu", group=2, bytes_of_key=bytes_of_key).prepare(batch).rows == rows


def test_batch_invariant_bits_do_not_depend_on_the_batch() -> None:
    batch, total = batch_of("triton invariant", [1, 40, 3], [200, 130, 90], 8, masks=False)
    q, kv = torch.randn(44, 4, 16, device=DEVICE), torch.randn(2, total, 2, 8, 16, device=DEVICE)
    attention = TritonPaged(2, DEVICE, group=2, batch_invariant=True)
    whole = attention.run(attention.prepare(batch), q, kv, None)
    for b in range(3):
        mine = slice(int(batch.query_indptr[b]), int(batch.query_indptr[b + 1]))
        alone = AttentionBatch(
            batch.query_indptr[b : b + 2] - mine.start, batch.query_position[mine], batch.pages[b : b + 1],
            batch.num_pages[b : b + 1], batch.column_position[b : b + 1],
        )  # fmt: skip
        assert torch.equal(whole[mine], attention.run(attention.prepare(alone), q[mine], kv, None))


def test_an_engine_s_bits_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        install_rows_alike(monkeypatch)
    sizes: dict[str, Any] = {"dtype": "float32", "kernels": "torch", "graphs": "off", "num_pages": 32}
    how: dict[str, Any] = {"attention": "triton", "device": DEVICE, "batch_invariant": True}
    d = Driver(load_engine(checkpoint("qwen3-norms"), **sizes, **how))
    pages, tokens = [9, 2, 14, 7, 5], numerics.TOKENS[:70]
    whole = d.prefill(tokens, pages)
    d.engine.reset()
    parts = [d.prefill(tokens[a:z], pages, first=a) for a, z in ((0, 3), (3, 67))]
    d.embed(tokens[67:], range(3), range(67, 70))
    d.embed(tokens[:5], range(3, 8), range(5))
    mine = {"lane": 1, "ikv": pages, "iemb": range(3), "okv": pages, "okv_offset": 67, "oemb": range(3)}
    d.ok(forward_batch([{"lane": 2, "iemb": range(3, 8), "okv": [20], "oemb": range(3, 8)}, mine]))
    assert np.array_equal(np.concatenate([*parts, d.logits(range(3))]), whole)


@pytest.mark.skipif(DEVICE == "cpu", reason="test_contract.py runs them on the CPU")
@pytest.mark.parametrize(("name", "size"), [("llama3-grouped", 1), ("qwen2-window", 4), ("qwen3-norms", 16)])
def test_random_programs_agree_with_a_plain_float64_model(name: str, size: int) -> None:
    program = RandomProgram(name, "triton", size, seed=2, device=DEVICE)
    for _ in range(10):
        [program.forward, program.forward, program.mask_page, program.copy][program.rng.integers(4)]()


@pytest.mark.skipif(DEVICE == "cpu", reason="test_page_tables.py runs them on the CPU")
def test_commands_over_tables_give_what_page_lists_give() -> None:
    pair = Pair("qwen2-window", "float32", {"attention": "triton", "device": DEVICE}, seed=1)
    for _ in range(25):
        pair.step()


@pytest.mark.parametrize("name", ["qwen3-norms", "mistral-window", "qwen3-moe", "gemma"])
def test_it_gives_the_logits_of_transformers(name: str) -> None:
    d = numerics.engine(numerics.Model(name, device=DEVICE), attention="triton")
    pages = [11, 3]
    # The prompt's second part is beyond the window of 24 tokens. It is short because the interpreter is slow.
    parts = [d.prefill(numerics.TOKENS[:20], pages), d.prefill(numerics.TOKENS[20:30], pages, first=20, embed0=100)]
    parts.append(d.prefill(numerics.TOKENS[30:31], pages, first=30, embed0=200))
    numerics.close(np.concatenate(parts), numerics.truth(numerics.Model(name), numerics.TOKENS[:31]))


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tartlet_worker.attention import triton_kernels as attention
from tartlet_worker.attention import triton_lists as lists
from tartlet_worker.models import triton_pointwise as pointwise
from tartlet_worker.models import triton_store as store
from tartlet_worker.sampling import triton_log_sums as log_sums

def loads_in_branches(text):
    # Triton reads ahead in a loop, and past the loop's end it takes the other side of a branch.
    blocks = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("}"):
            blocks.pop()
        if "tt.load" in line and "for" in blocks and "if" in blocks[blocks.index("for"):]:
            yield line
        if line.endswith("{"):
            blocks.append("for" if "scf.for" in line else "if" if "scf.if" in line or "else" in line else "")

def compiled(kernel, floats, constants, **options):
    names = kernel.arg_names
    kinds = {name: "constexpr" for name in constants}
    signature = {n: kinds.get(n) or floats.get(n) or "*i32" for n in names}
    # A worker's tensors begin at multiples of 16 bytes. Only then are keys of bf16 read ahead, into shared memory.
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.asm["cubin"], kernel
    assert "cp.async.cg" in made.asm["ptx"] or kernel is not attention.attend, "nothing is read ahead by 16 bytes"
    assert not list(loads_in_branches(made.asm["ttir"])), kernel
    assert made.metadata.shared <= 227 << 10, (kernel, constants, made.metadata.shared)
    print(made.metadata.shared)

states = {n: "*fp32" for n in ("run_top", "run_total", "run_sums")}
shapes = [(dim, kind) for dim in (128, 256) for kind in ("*bf16", "*fp32")]
for dim, kind in (*shapes, (64, "*bf16"), (80, "*bf16")):  # 64: Llama's 1B; 80 is no power of two
    heads = {"HEADS": 32, "KV_HEADS": 8, "DIM": dim}
    tensors = {n: kind for n in ("q", "keys", "values", "out")} | states | {"masks": "*u8", "scale": "fp32"}
    tensors |= {n: "i32" for n in ("table_width", "listed_width", "window", "runs")}
    shape = heads | {"DIMS": attention.key_bytes(dim, 1), "BLOCK": attention.BLOCK, "RUN": attention.RUN}
    shape["FIELDS"] = attention.TILE_FIELDS
    number_bytes = {"*bf16": 2, "*fp32": 4}[kind]
    wide = attention.key_bytes(dim, number_bytes) >= attention.WIDE_BYTES
    tiles = [(16, True, False, False), (64, False, True, True)][: 1 if wide else 2]
    if (dim, kind) == (128, "*bf16"):
        tiles.append((16, True, True, False))
    for rows, split, window, masks in tiles:
        more = {"ROWS": rows, "PAGE": 16, "WINDOW": window, "MASKS": masks, "SPLIT": split}
        reads = attention.stages(dim, number_bytes)
        compiled(attention.attend, tensors, shape | more | {"WIDE": False}, num_stages=reads)
    norms = dim != 80
    taken = {n: kind for n in ("qkv", "query_norm", "key_norm", "cos", "sin", "queries", "keys", "values")}
    taken |= {"page": "*i64", "slot": "*i64", "eps": "fp32", "count": "i32"}
    more = {"HALF": shape["DIMS"] // 2, "PAGE": 16, "NORMS": norms, "ROWS": store.HEADS_A_PROGRAM}
    compiled(store.norm_rope_append, taken, heads | more)
    if kind == "*fp32":
        continue
    for window in (False, True):
        compiled(attention.join_runs, tensors, shape | {"ROWS": 16, "WINDOW": window})

rows = {n: "*bf16" for n in ("x", "more", "weight", "total", "normed")} | {"eps": "fp32", "count": "i32"}
for dim, added, gemma in ((8192, True, False), (3072, True, True), (2048, False, False)):
    dims = 1 << (dim - 1).bit_length()
    sizes = {"DIM": dim, "DIMS": dims, "ADD": added, "SHIFT": gemma, "ROWS": 1}
    compiled(pointwise.norm_rows, rows, sizes, num_warps=min(16, dims // 256))
gated = {"gate_up": "*bf16", "out": "*bf16", "count": "i32"}
compiled(pointwise.gate_rows, gated, {"WIDTH": 14336, "BLOCK": pointwise.GATED, "ROWS": 1})
many = {"COUNTS": 256, "PAGE": 16, "BLOCK": lists.BLOCK}
compiled(lists.list_pages, {"width": "i32", "rows": "i32"}, many)
taken = {"logits": "*fp32", "sums": "*fp32", "stride": "i64", "vocab": "i32"}
compiled(log_sums.sum_rows, taken, {"BLOCK": log_sums.BLOCK}, num_warps=8)
for kernel, names in ((lists.list_pages, {"width", "rows"}), (attention.join_runs, {"window", "runs"})):
    assert {p.name for p in kernel.params if p.do_not_specialize} == names, "each new number would compile again"
"""


def test_every_kernel_of_the_worker_is_compiled_below(repo: Path) -> None:
    kernels = set()
    for file in (repo / "gpu_worker").rglob("*.py"):
        kernels |= set(re.findall(r"@triton\.jit(?:\(.*\))?\s+def (\w+)", file.read_text()))
    whole = {"attend", "join_runs", "norm_rope_append", "norm_rows", "gate_rows", "list_pages", "sum_rows"}
    assert kernels == whole | {"merge", "first_seen"}  # which are parts of two of them
    assert all(f".{name}," in COMPILE for name in whole)


@pytest.mark.skipif(DEVICE != "cpu", reason="the other tests compile kernels here")
@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_an_h100_within_its_shared_memory(repo: Path) -> None:
    # Compiling takes a minute. Triton finds a kernel again by its source, constants, options and Triton's own release.
    cache = repo / "build" / "triton-sm90"
    env = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "1"}
    made = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-3000:]
    assert len(made.stdout.split()) == 32


@pytest.mark.parametrize(
    ("device", "invariant", "c_kernel", "lacks", "name"),
    [
        ("cpu", False, True, ("", ""), "c"),
        ("cpu", True, False, ("", ""), "torch-chunked"),
        ("cuda", True, True, ("", ""), "triton"),
        ("cuda", False, False, ("", ""), "flashinfer"),
        ("cuda", False, False, ("no Triton", ""), "flashinfer"),
        ("cuda", False, False, ("", "no FlashInfer"), "triton"),
        ("cuda:1", False, False, ("no Triton", "no FlashInfer"), "torch-gather"),
        ("cuda:1", True, False, ("no Triton", ""), "torch-chunked"),
    ],
)
def test_the_choice_names_what_is_missing(
    device: str, lacks: tuple[str, str], name: str, *, invariant: bool, c_kernel: bool
) -> None:
    triton, flashinfer = lacks
    choice = choose(
        device, batch_invariant=invariant, c_kernel=c_kernel, triton_lacks=triton, flashinfer_lacks=flashinfer
    )
    assert choice.name == name
    if device != "cpu":
        assert triton in choice.why
    if name == "triton":
        assert flashinfer in choice.why


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="there is no CUDA device, or Triton interprets")
def test_the_compiled_kernels_give_the_greedy_text_of_transformers() -> None:
    numerics.test_greedy_text_of_64_tokens_is_that_of_generate(numerics.Model("qwen3-window", device=DEVICE))
