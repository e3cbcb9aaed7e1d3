"""Pages that go to the host's memory and come back: how fast, and whether they come back as they went."""

from __future__ import annotations

import numpy as np
import torch

from bench.gpu.loops import Rig
from bench.gpu.record import Record, Skip
from bench.gpu.shapes import checkpoint
from bench.gpu.timing import seconds
from bench.product.common import Step
from bench.product.gpu import EMPTY_I32, Swaps

PAGES = 512


def run(record: Record) -> None:
    """Swap pages of the 1B shape out, overwrite them, and swap them in."""
    pages = 8 if record.rehearse else PAGES
    path = checkpoint("1b", record.scratch, rehearse=record.rehearse)
    rig = Rig(path, record.device, num_pages=pages, batch=1, host_kv_bytes=(64 if record.rehearse else 2048) << 20)
    engine, spec = rig.loaded, rig.spec
    if not spec.host_pages:
        raise Skip("the worker keeps no pages in host memory")
    count = min(pages, spec.host_pages)
    record.note(host_pages=spec.host_pages, host_page_ns=spec.host_page_ns, pages=count)
    ids = np.arange(count, dtype=np.int32)
    before = engine.pools.kv[:, :, :count].clone()
    leave = Step(1, (), swaps=Swaps(ids, ids, EMPTY_I32, EMPTY_I32))
    come = Step(2, (), clear_pages=ids, swaps=Swaps(EMPTY_I32, EMPTY_I32, ids, ids))
    moved = count * spec.page_size * spec.kv_bytes_per_token
    out_s = seconds(lambda: engine.step(leave), record.device)
    in_s = seconds(lambda: engine.step(come), record.device)
    record.note(bytes=moved, out_bytes_per_s=moved / out_s, in_bytes_per_s=moved / in_s)
    record.expect(bool(torch.equal(before, engine.pools.kv[:, :, :count])), "pages came back with other values")
