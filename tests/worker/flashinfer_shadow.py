"""FlashInfer's paged wrappers in torch, for machines without a GPU: the same signatures, checks and faults.

The wrappers read every slot of a page, written or not, save behind the last one; count windows and causality in
columns; take `indices` and masks on the workspace's device and the rest of a plan on the host. Where the real ones
would read past an array's end or corrupt a plan, these raise. `test_flashinfer_package.py` compares the signatures.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from tartlet_worker.attention import flashinfer_build
from tartlet_worker.attention.flashinfer_modules import SEEN_NAME, SEEN_SOURCE, VERSION

__version__ = VERSION
DTYPES = {torch.bfloat16, torch.float16}
HEAD_DIMS = {64, 128, 256}


def install(monkeypatch: pytest.MonkeyPatch, *, anything: bool = True) -> None:
    """Let `import flashinfer` find this module; with `anything` it takes all dtypes and head sizes."""
    monkeypatch.setitem(sys.modules, "flashinfer", sys.modules[__name__])
    if anything:
        monkeypatch.setattr(sys.modules[__name__], "DTYPES", {*DTYPES, torch.float32})
        monkeypatch.setattr(sys.modules[__name__], "HEAD_DIMS", set(range(2, 257, 2)))


def check(tensor: Tensor, name: str, dtype: torch.dtype, device: torch.device | str) -> None:
    assert isinstance(tensor, Tensor), name
    assert tensor.dtype == dtype, (name, tensor.dtype)
    assert tensor.device == torch.device(device), (name, tensor.device)
    assert tensor.is_contiguous(), name


def launched(module: str, mask: int) -> None:
    assert mask in flashinfer_build.masks(module), "a module that was built ahead of time has no such kernel"


class _Paged:
    """What both wrappers have: lists of pages, and attention over them."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str, backend: str) -> None:
        assert float_workspace_buffer.data_ptr() % 16 == 0
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.numel() >= 128 << 20
        assert kv_layout == "HND"
        assert backend == "fa2", "auto turns to fa3, which takes no masks"
        self.device = float_workspace_buffer.device
        self.plans = self.copies = 0
        self._int_workspace_buffer = torch.zeros(16, dtype=torch.uint8, device=self.device)
        self._pin_memory_int_workspace_buffer = torch.zeros(16, dtype=torch.uint8)

    def _note(
        self, q_indptr: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, heads: int, kv_heads: int, head_dim: int,
        page_size: int, dtypes: tuple[Any, Any, Any], sm_scale: float | None,
    ) -> None:  # fmt: skip
        for name, tensor in (("qo_indptr", q_indptr), ("indptr", indptr), ("last_page_len", last)):
            check(tensor, name, torch.int32, "cpu")  # elsewhere the real plan reads them back
        check(indices, "indices", torch.int32, self.device)
        batch, pages = len(last), indptr.diff()
        if not batch:
            raise ZeroDivisionError
        assert len(indptr) == len(q_indptr) == batch + 1
        assert indptr[0] == q_indptr[0] == 0
        assert int(indptr[-1]) == len(indices)
        assert (pages > 0).all()
        assert (q_indptr.diff() > 0).all()
        assert ((last >= 1) & (last <= page_size)).all()
        assert heads % kv_heads == 0
        assert head_dim in HEAD_DIMS
        assert len(set(dtypes)) == 1
        assert dtypes[0] in DTYPES
        self.plans += 1
        # On the host: in a capture nothing may be read back.
        self._indptr, self._q_indptr = indptr.tolist(), q_indptr.tolist()
        self._indices = indices
        self._length = ((pages - 1) * page_size + last).tolist()
        self._shape = heads, kv_heads, head_dim, page_size
        self._dtype, self._scale = dtypes[0], head_dim**-0.5 if sm_scale is None else sm_scale

    def _see(self, b: int, n: int, length: int) -> Tensor:
        """[n, length] which columns the queries of request b see."""
        raise NotImplementedError

    def _attend(self, q: Tensor, cache: tuple[Tensor, Tensor], out: Tensor | None) -> Tensor:
        heads, kv_heads, head_dim, page_size = self._shape
        for name, tensor in (("q", q), ("k", cache[0]), ("v", cache[1])):
            check(tensor, name, self._dtype, self.device)
        assert q.shape == (self._q_indptr[-1], heads, head_dim)
        assert cache[0].shape == cache[1].shape
        assert cache[0].shape[1:] == (kv_heads, page_size, head_dim)
        out = torch.empty_like(q) if out is None else out
        check(out, "out", self._dtype, self.device)
        assert out.shape == q.shape
        for b, length in enumerate(self._length):
            first, last = self._q_indptr[b], self._q_indptr[b + 1]
            pages = self._indices[self._indptr[b] : self._indptr[b + 1]].long()
            # a masked column is 0 * V in the real kernels, so a NaN there reaches the row, as it does here
            k, v = (
                c[pages]
                .transpose(1, 2)
                .reshape(-1, kv_heads, head_dim)[:length]
                .repeat_interleave(heads // kv_heads, 1)
                for c in cache
            )
            seen = self._see(b, last - first, length)
            assert seen.shape == (last - first, length)
            score = torch.einsum("nhd,lhd->hnl", q[first:last].double(), k.double()) * self._scale
            score = score.masked_fill(~seen, -torch.inf)
            weight = torch.where(seen.any(-1)[:, None], score.softmax(-1), 0)
            out[first:last] = torch.einsum("hnl,lhd->nhd", weight, v.double()).to(out.dtype)
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        assert jit_args is None
        self._tensor_cores, self._graph = use_tensor_cores, use_cuda_graph
        self._buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        if use_cuda_graph:
            for buffer in self._buffers:
                assert buffer is not None
                check(buffer, "buffer", torch.int32, self.device)
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1  # type: ignore[arg-type]
        self._frozen: Any = None

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *deprecated_positional_args: Any,
        **kwargs: Any,
    ) -> None:
        assert not deprecated_positional_args
        self._plan_impl(indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, **kwargs)

    def _plan_impl(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        window_right: int = 0,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: Tensor | None = None,
        seq_lens: Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        is_causal: bool | None = None,
    ) -> None:
        assert window_left >= -1
        assert q_len_per_req == 1
        if not self._tensor_cores:
            assert num_qo_heads // num_kv_heads in {1, 2, 3, 4, 6, 8, 16}, "no such CUDA-core kernel"
            assert fixed_split_size is None
        if self._graph:
            frozen = (len(last_page_len), num_qo_heads, num_kv_heads, head_dim, page_size, window_left, q_data_type)
            assert self._frozen in (None, frozen), "a graph's shape is frozen"
            assert len(last_page_len) == len(self._buffers[2])  # type: ignore[arg-type]
            assert len(indices) <= len(self._buffers[1])  # type: ignore[arg-type]
            self._frozen = frozen
            for buffer, values in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
                buffer[: len(values)].copy_(values)  # type: ignore[index]
                self.copies += 1
            indices = self._buffers[1][: len(indices)]  # type: ignore[index]
        q_indptr = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        dtypes = (q_data_type, kv_data_type, o_data_type)
        self._note(
            q_indptr, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, dtypes, sm_scale
        )
        self._left = window_left
        self._plan_info = [len(last_page_len), window_left]

    def replan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, frozen: tuple[Any, ...], sm_scale: float | None
    ) -> None:
        """Plan anew over what lies in the buffers of a graph, which real kernels would read unchecked."""
        assert self._graph
        assert self._frozen == frozen, "not planned before, or a graph's shape is frozen"
        for buffer, values in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
            assert torch.equal(buffer[: len(values)], values), "nobody has filled a buffer"  # type: ignore[index]
        indices = self._buffers[1][: len(indices)]  # type: ignore[index]
        q_indptr = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        _, heads, kv_heads, head_dim, page_size, left, dtype = frozen
        dtypes = (dtype, dtype, dtype)
        self._note(q_indptr, indptr, indices, last_page_len, heads, kv_heads, head_dim, page_size, dtypes, sm_scale)
        self._plan_info = [len(last_page_len), left]

    def _see(self, b: int, n: int, length: int) -> Tensor:
        column = torch.arange(length, device=self.device)[None]
        return column >= (0 if self._left < 0 else length - 1 - self._left)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Any = None,
    ) -> Tensor:
        assert not args
        if self._tensor_cores:  # its module is prefill's
            launched(f"prefill_use_swa_{self._left >= 0}", flashinfer_build.PLAIN)
        return self._attend(q, paged_kv_cache, out)


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int,
    num_kv_heads: int, head_dim: int, page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1,
    logits_soft_cap: float | None = None, q_data_type: Any = None, kv_data_type: Any = None, data_type: Any = None,
    sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
    non_blocking: bool = True, fixed_split_size: int | None = None, disable_split_kv: bool = False,
    q_len_per_req: int = 1, global_override_indptr_cpu: Tensor | None = None,
) -> None:  # fmt: skip
    assert q_data_type == kv_data_type
    assert global_override_indptr_cpu is None
    frozen = (len(last_page_len), num_qo_heads, num_kv_heads, head_dim, page_size, window_left, q_data_type)
    self.replan(indptr, indices, last_page_len, frozen, sm_scale)


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, backend)
        assert not use_cuda_graph, "we capture decode alone"
        assert variant_owns_mask == (jit_args is not None), "else the variant isn't asked for inner tiles"
        if jit_args is not None:
            assert len(jit_args) == 13
            assert jit_args[7:] == [
                ["seen", "position"], ["int32_t", "int32_t"], ["sm_scale", "window"], ["double", "int64_t"],
                SEEN_NAME, SEEN_SOURCE,
            ]  # fmt: skip
            assert jit_kwargs == {"paged_kv_stride_mode": "equal"}
        self._variant = variant_owns_mask
        self._given: tuple[Any, ...] = ()

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> None:
        assert packed_custom_mask is None, "wrong for more than one request"
        dtypes = (q_data_type, kv_data_type, o_data_type)
        self._note(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
            head_dim_qk, page_size, dtypes, sm_scale,
        )  # fmt: skip
        counts = qo_indptr.diff()
        length = torch.tensor(self._length)
        self._mask_at = torch.cat([torch.zeros(1, dtype=torch.int64), (counts * length).cumsum(0)])
        if custom_mask is not None:
            check(custom_mask, "custom_mask", torch.bool, self.device)
            assert custom_mask.shape == (int(self._mask_at[-1]),), "the real kernel reads past the end"
            assert not causal
        assert not causal or bool((length >= counts).all())
        self._mask, self._causal, self._left = custom_mask, causal, window_left

    def _see(self, b: int, n: int, length: int) -> Tensor:
        column, query = torch.arange(length, device=self.device)[None], torch.arange(n, device=self.device)[:, None]
        if self._variant:
            seen, position, _, window = self._given
            size = self._shape[3]
            pages = self._indices[self._indptr[b] : self._indptr[b + 1]]
            at = position[self._q_indptr[b] + query].long()
            found = seen[pages.long()[column // size] * size + column % size].long()
            within: Tensor = (found <= at) & (at - found < window)
            return within
        if self._mask is not None:
            return self._mask[int(self._mask_at[b]) : int(self._mask_at[b + 1])].view(n, length)
        seen = column <= length - n + query if self._causal else torch.ones(n, length, dtype=torch.bool)
        return seen if self._left < 0 else seen & (column >= length - n + query - self._left)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *args: Any,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Any = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Tensor:
        assert len(args) == (4 if self._variant else 0)
        if self._variant:
            check(args[0], "seen", torch.int32, self.device)
            check(args[1], "position", torch.int32, self.device)
            assert len(args[1]) == len(q)
            assert isinstance(args[2], float)
            assert isinstance(args[3], int)
        self._given = args
        custom = self._variant or self._mask is not None
        name = "tartlet_seen" if self._variant else f"prefill_use_swa_{self._left >= 0}"
        launched(name, flashinfer_build.CUSTOM if custom else int(self._causal))
        return self._attend(q, paged_kv_cache, out)
