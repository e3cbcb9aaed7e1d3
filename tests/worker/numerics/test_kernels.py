"""The C kernels by themselves: against float64, on every instruction set, and where they can't be built."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tartlet_worker.attention.base import AttentionBatch
from tartlet_worker.attention.c_kernel import CKernel
from tartlet_worker.kernels import available, library
from tartlet_worker.kernels.build import NotBuilt, build
from tartlet_worker.kernels.library import CMatrix, CModel, CPass
from tartlet_worker.pools import FAR
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver
from tests.worker.families import checkpoint
from tests.worker.seeds import rng as fresh


@pytest.fixture(params=["amx", "avx512"])
def lib(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    """The kernels, with tiles and without."""
    if not available():
        pytest.skip("the C kernels are not built")
    loaded = library()
    assert loaded is not None
    if loaded.kernels_init(int(request.param == "amx")) != int(request.param == "amx"):
        pytest.skip("the CPU has no tiles")
    yield loaded
    loaded.kernels_init(1)


def packed(lib: ctypes.CDLL, weight: torch.Tensor) -> tuple[torch.Tensor, CMatrix]:
    n, k = weight.shape
    np_, kp = -(-n // 32) * 32, -(-k // 32) * 32
    out = torch.empty(np_ * kp, dtype=torch.bfloat16)
    lib.pack_weights(weight.data_ptr(), n, k, out.data_ptr())
    return out, CMatrix(out.data_ptr(), None, np_, kp)


def multiply(lib: ctypes.CDLL, x: torch.Tensor, matrix: CMatrix, n: int) -> torch.Tensor:
    y = torch.empty(len(x), n)
    lib.linear(x.data_ptr(), len(x), x.shape[1], ctypes.addressof(matrix), y.data_ptr(), n)
    return y


@pytest.mark.parametrize(("n", "k"), [(32, 32), (48, 24), (100, 70), (513, 192), (7, 3)])
def test_products_are_right_and_do_not_depend_on_the_number_of_rows(lib: ctypes.CDLL, n: int, k: int) -> None:
    weight, x = torch.randn(n, k).bfloat16(), torch.randn(300, k).bfloat16()
    keep, matrix = packed(lib, weight)
    whole = multiply(lib, x, matrix, n)
    want = x.double() @ weight.double().T
    assert torch.allclose(whole.double(), want, atol=1e-3 * k**0.5)
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 64, 299):
        assert torch.equal(multiply(lib, x[-rows:].contiguous(), matrix, n), whole[-rows:])
    del keep


def test_row_statistics_are_those_of_torch(lib: ctypes.CDLL) -> None:
    for n in (1, 15, 16, 100, 1000):
        y = torch.randn(5, n) * 10
        y[0] = 3.0  # all equal: the first counts
        best, log_sum = torch.empty(5, dtype=torch.int64), torch.empty(5)
        lib.row_stats(y.data_ptr(), 5, n, best.data_ptr(), log_sum.data_ptr())
        assert torch.equal(best, y.argmax(-1))
        assert best[0] == 0
        assert torch.allclose(log_sum, y.double().logsumexp(-1).float(), atol=1e-5)


def random_batch(
    rng: np.random.Generator, tokens: list[int], page_size: int, pool: int, *, masked: bool
) -> AttentionBatch:
    width = 9
    pages = np.stack([rng.permutation(pool)[:width] for _ in tokens]).astype(np.int32)
    num = rng.integers(1, width + 1, len(tokens)).astype(np.int32)
    position = rng.integers(0, 200, (len(tokens), width * page_size)).astype(np.int32)
    position[rng.random(position.shape) < 0.2] = FAR
    for b, n in enumerate(num):
        position[b, n * page_size :] = FAR
    allowed = {}
    if masked:
        for b in range(0, len(tokens), 2):
            allowed[b] = (rng.random((tokens[b], width * page_size)) < 0.4) & (position[b] < FAR)
    return AttentionBatch(
        query_indptr=np.concatenate([[0], np.cumsum(tokens)]),
        query_position=rng.integers(0, 200, sum(tokens)).astype(np.int32),
        pages=pages,
        num_pages=num,
        column_position=position,
        allowed=allowed,
    )


def plain(batch: AttentionBatch, q: Any, kv: Any, window: int | None) -> np.ndarray[Any, Any]:
    """Attention in float64, one head at a time."""
    heads, kv_heads, dim = q.shape[1], kv.shape[2], q.shape[2]
    out = np.zeros(q.shape)
    for b in range(len(batch.num_pages)):
        keys, values = (kv[i, batch.pages[b]].transpose(1, 0, 2, 3).reshape(kv_heads, -1, dim) for i in (0, 1))
        seen = batch.visible(b, window)
        for i, t in enumerate(range(batch.query_indptr[b], batch.query_indptr[b + 1])):
            for h in range(heads):
                score = keys[h * kv_heads // heads] @ q[t, h] / np.sqrt(dim)
                weight = np.where(seen[i], np.exp(score - score.max()), 0)
                if weight.sum() > 0:
                    out[t, h] = weight @ values[h * kv_heads // heads] / weight.sum()
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page_size", "window"),
    [
        (12, 4, 64, 16, None),
        (4, 4, 64, 32, 40),
        (8, 1, 128, 5, None),
        (6, 2, 32, 1, 10),
        (4, 2, 24, 16, None),
        (2, 1, 96, 8, 30),
        (20, 1, 64, 16, None),
    ],
)
def test_attention_is_that_of_float64(
    lib: ctypes.CDLL, dtype: torch.dtype, heads: int, kv_heads: int, dim: int, page_size: int, window: int | None
) -> None:
    rng = fresh(f"attention {heads} {dim}")
    tokens = [1, 1, 7, 30, 2]
    for masked in (False, True):
        batch = random_batch(rng, tokens, page_size, 40, masked=masked)
        q, kv = torch.randn(41, heads, dim).to(dtype), torch.randn(2, 40, kv_heads, page_size, dim).to(dtype)
        kernel = CKernel(kv_heads, "cpu")
        got = kernel.run(kernel.prepare(batch), q, kv, window)
        want = plain(batch, q.double().numpy(), kv.double().numpy(), window)
        tolerance = 1e-5 if dtype == torch.float32 else 1.5e-2  # the output itself is rounded to bf16
        assert np.abs(got.double().numpy() - want).max() <= tolerance * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("name", ["llama3-grouped", "qwen3-norms", "llama-one-kv-head-biases"])
def test_the_decoder_in_c_agrees_with_the_one_in_torch(lib: ctypes.CDLL, name: str) -> None:
    tokens = fresh("decoder in c").integers(0, 320, 60)
    mine, theirs, exact = (
        Driver(load_engine(checkpoint(name), num_pages=8, kernels=kernels, dtype=dtype)).prefill(tokens, [3, 1, 0, 6])
        for kernels, dtype in (("c", "bfloat16"), ("torch", "bfloat16"), ("torch", "float32"))
    )
    assert np.abs(mine - exact).max() <= 1.5 * np.abs(theirs - exact).max()


def test_a_kernel_without_room_for_its_scratch_says_so_and_touches_nothing(lib: ctypes.CDLL) -> None:
    huge, none = 1 << 56, None
    many, model, tokens = CMatrix(None, None, 32, 32), CModel(dim=32, layers=0), CPass(tokens=1 << 50)
    calls = {
        "linear": (none, huge, 32, ctypes.addressof(many), none, 32),
        "top_rows": (none, 1, huge, 1, none),
        "draw_rows": (none, 1, huge, *(none,) * 7),
        "attend_bf16": (*(none,) * 4, 1, *(none,) * 3, 1, huge, *(none,) * 3, 0, 4, 2, 1, 64, 1.0),
        "attend_f32": (*(none,) * 4, 1, *(none,) * 3, 1, huge, *(none,) * 3, 0, 4, 2, 1, 64, 1.0),
        "decoder_run": (ctypes.addressof(model), ctypes.addressof(tokens)),
    }
    for name, arguments in calls.items():
        with pytest.raises(MemoryError):
            getattr(lib, name)(*arguments)
        assert lib.kernels_scratch() == 0
    weight, x = torch.randn(100, 70).bfloat16(), torch.randn(30, 70).bfloat16()
    keep, matrix = packed(lib, weight)
    assert torch.allclose(multiply(lib, x, matrix, 100).double(), x.double() @ weight.double().T, atol=1e-2)
    del keep


def test_scratch_of_a_large_batch_is_not_kept(lib: ctypes.CDLL) -> None:
    keep, matrix = packed(lib, torch.randn(32, 32).bfloat16())
    multiply(lib, torch.randn(64, 32).bfloat16(), matrix, 32)
    assert 0 < lib.kernels_scratch() <= 128 << 20
    lib.top_rows(None, 0, 1 << 25, 1, None)  # room for 256 MiB of keys
    assert lib.kernels_scratch() == 0
    del keep


_STARVED = """
import resource, sys
import numpy as np
from tartlet_common.errors.registry import OutOfDeviceMemory
from tartlet_worker.torch_engine.loader import load_engine
from tests.worker.driver import Driver

driver = Driver(load_engine(sys.argv[1], num_pages=64, num_embeds=1024, kernels=sys.argv[2], dtype="bfloat16"))
driver.prefill(np.zeros(8, np.int32), [0])
used, most = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize(), resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_AS, (used, most))
kept = []
try:
    while True:  # what the allocators have free
        kept.append(bytearray(1 << 16))
except MemoryError:
    pass
# The lists and arrays of the commands are made outside of the step, and need little. A wide model's step needs more
# than 4 MiB on every processor.
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 20), most))
try:
    driver.prefill(np.zeros(512, np.int32), list(range(1, 63)))
except OutOfDeviceMemory as e:
    print("typed:", e)
"""


@pytest.mark.parametrize("kernels", ["c", "torch"])
def test_a_step_that_gets_no_memory_ends_in_a_typed_error(kernels: str) -> None:
    if kernels == "c" and not available():
        pytest.skip("the C kernels are not built")
    command = [sys.executable, "-c", _STARVED, str(checkpoint("wide")), kernels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("typed: more bytes needed on cpu"), done.stderr


def test_without_a_compiler_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TARTLET_KERNELS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NotBuilt):
        build()
    assert not available()
    engine = load_engine(checkpoint("llama3-grouped"), num_pages=4, dtype="bfloat16")
    assert np.isfinite(Driver(engine).prefill([1, 2, 3], [0])).all()


def test_a_compiler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TARTLET_KERNELS_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NotBuilt):
        build()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TARTLET_KERNELS_DIR", str(tmp_path / "file" / "kernels"))
    with pytest.raises(NotBuilt):
        build()
