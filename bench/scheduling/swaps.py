"""Pages to host memory and back against computing their tokens again, by length, and one transfer against many.

The torch engine alone, in this process. Control decides by the same comparison which pages a suspended program keeps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch

from bench.batching import DEMO_MODEL
from bench.engine_loop import BareLoop
from bench.harness import report
from bench.product.common import Step, Swaps
from bench.product.worker import Engine, load_engine

LENGTHS: Final = (1, 16, 64, 256, 512)
PAGE_SIZE: Final = 16
PAGES: Final = 512
MOVED: Final = 256
"""Pages of the comparison of one transfer with one for each page."""
_NONE: Final = np.zeros(0, np.int32)
HOST_BYTES: Final = 1 << 26
TURNS: Final = 5


def cpu_s(work: Callable[[], object]) -> float:
    """Return how much of this process's CPU some work takes, in seconds; others use the machine too."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def both_ways(engine: Engine, pages: np.ndarray, hosts: np.ndarray) -> None:
    """Copy pages to host memory in one step, and back in another."""
    engine.step(Step(1, (), swaps=Swaps(pages, hosts, _NONE, _NONE)))
    engine.step(Step(2, (), clear_pages=pages, swaps=Swaps(_NONE, _NONE, hosts, pages)))


def one_by_one(engine: Engine, pages: np.ndarray, hosts: np.ndarray) -> None:
    """Copy pages to host memory and back, each in steps of its own."""
    for page, host in zip(pages[:, None], hosts[:, None], strict=True):
        both_ways(engine, page, host)


def by_length(engine: Engine, turns: int) -> report.Report:
    """Compare copying with computing, a row for each length; of each the quickest of so many turns counts."""
    title = f"Pages of {PAGE_SIZE} tokens to host memory and back, or computed again"
    made = report.Report("swaps", title, ["tokens", "copy ms", "compute ms"])
    copies, computes = [], []
    for tokens in LENGTHS:
        pages = np.arange(-(-tokens // PAGE_SIZE), dtype=np.int32)
        loop, prompt = BareLoop(engine, 1, tokens, 1), [[n % 200 for n in range(tokens)]]
        copies.append(1e3 * min([cpu_s(lambda: both_ways(engine, pages, pages)) for _ in range(turns)]))  # noqa: B023
        computes.append(1e3 * min([loop.run(prompt).cpu_s for _ in range(turns)]))
        made.rows.append((tokens, copies[-1], computes[-1]))
        report.progress(f"swaps: {made.rows[-1]}")
    cheaper = [n for n, copy, compute in zip(LENGTHS, copies, computes, strict=True) if copy < compute]
    made.notes = [f"copying costs less from {cheaper[0]} tokens on" if cheaper else "computing costs less throughout"]
    made.series = [report.Series("copy", LENGTHS, copies), report.Series("compute", LENGTHS, computes)]
    made.x_label, made.y_label, made.log_x = "tokens", "ms", True
    return made


def by_transfers(engine: Engine, turns: int) -> report.Report:
    """Compare one transfer of scattered pages with one for each page, and both with a plain copy."""
    rng = np.random.default_rng(1)
    pages, hosts = rng.permutation(PAGES)[:MOVED].astype(np.int32), np.arange(MOVED, dtype=np.int32)
    moved = 2 * MOVED * PAGE_SIZE * engine.spec.kv_bytes_per_token
    plain = torch.ones(moved // 2, dtype=torch.uint8)
    works: dict[str, Callable[[], object]] = {
        "one transfer": lambda: both_ways(engine, pages, hosts),
        "page by page": lambda: one_by_one(engine, pages, hosts),
        "a plain copy": lambda: (plain.clone(), plain.clone()),
    }
    took = {name: min([cpu_s(work) for _ in range(turns)]) for name, work in works.items()}
    title = f"{MOVED} scattered pages both ways, {moved / 2**20:.0f} MiB"
    made = report.Report("swaps-ways", title, ["how", "ms", "share of a plain copy's speed"])
    made.rows = [(name, 1e3 * seconds, took["a plain copy"] / seconds) for name, seconds in took.items()]
    return made


def measure(args: argparse.Namespace) -> list[report.Report]:
    """Make both tables."""
    engine = load_engine(
        args.model,
        threads=1,
        page_size=PAGE_SIZE,
        num_pages=PAGES,
        num_embeds=4 * max(LENGTHS),
        host_kv_bytes=HOST_BYTES,
    )
    turns = args.repeat * TURNS
    return [by_length(engine, turns), by_transfers(engine, turns)]


def main() -> int:
    """Run the command line."""
    parser = report.parser("swaps", __doc__, repeat=1, goals=False)
    parser.add_argument(
        "--model", type=Path, default=DEMO_MODEL, metavar="DIR", help="checkpoint (default: the demo model)"
    )
    args = parser.parse_args()
    return report.emit(measure(args), args)


if __name__ == "__main__":
    sys.exit(main())
