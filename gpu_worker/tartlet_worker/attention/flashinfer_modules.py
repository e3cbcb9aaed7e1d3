"""The compiled modules that the FlashInfer path loads: their names, our variant's source, and what they lack here.

FlashInfer compiles a module when it is first needed, with ninja, a C++ compiler and nvcc. A module that lies in the
package as `data/aot/NAME/NAME.so` is loaded as it is, with no compiler. `flashinfer_build` puts modules there.

This module imports neither torch nor FlashInfer before it builds, so that it can be asked at once what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

VERSION = "0.7.2.post1"
"""The release of flashinfer-python whose sources, signatures and module names this path was written against."""
HEAD_DIMS = (64, 128, 256)
DTYPES = ("bfloat16",)
CORE_GROUPS = (1, 2, 3)
"""Query heads for each key head with which decoding is faster without tensor cores."""
MANIFEST = "tartlet.json"
"""The file beside the built modules that tells for which devices they were built."""
CCCL = Path("data", "cccl", "libcudacxx", "include", "cuda", "__cmath", "fast_modulo_division.h")
"""A header that the kernels include (`fastdiv.cuh`). CUDA 13.0's toolkit lacks it, so the package brings CCCL."""
QUANTIZATION = "quantization"
"""The module that packs masks into bits."""

SEEN_NAME = "SeenAttention"
SEEN_SOURCE = r"""
namespace flashinfer {
DEFINE_HAS_MEMBER(paged_kv)
}

// A column is seen if its slot's position is at most the query's and within the window.
struct SeenAttention : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t window_left, qo_len, kv_len;
  float sm_scale_log2;

  template <typename Params>
  __device__ __host__ SeenAttention(const Params& params, uint32_t batch_idx, uint8_t* smem_ptr) {
    qo_len = params.get_qo_len(batch_idx);
    kv_len = params.get_kv_len(batch_idx);
    window_left = kv_len;
    sm_scale_log2 = params.sm_scale * math::log2e;
  }

  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    bool mask = false;
    if constexpr (has_paged_kv_v<Params>) {  // the kernels without pages are compiled too, and never run
      if (qo_idx < qo_len && kv_idx < kv_len) {
        uint32_t rank, slot;
        params.paged_kv.page_size.divmod(kv_idx, rank, slot);
        const uint32_t page_size = params.paged_kv.page_size;
        const uint64_t page = params.paged_kv.indices[params.paged_kv.indptr[batch_idx] + rank];
        const int32_t position = params.seen[page * page_size + slot];
        const int32_t at = params.position[params.q_indptr[batch_idx] + qo_idx];
        mask = position <= at && int64_t(at) - position < params.window;
      }
    }
    return mask;
  })
};
"""
SEEN_OPTIONS = {"paged_kv_stride_mode": "equal"}  # keys and values lie alike


def seen_module(head_dim: int, dtype: str) -> str:
    """Return the name of the module with `SEEN_SOURCE`."""
    return f"tartlet_seen_1_{_SHORT.get(dtype, dtype)}_head_dim_{head_dim}"


def seen_arguments(head_dim: int, dtype: Any, index: Any) -> list[Any]:
    """Return `jit_args` of a prefill wrapper with `SEEN_SOURCE`.

    Args:
        head_dim: of queries, keys and values.
        dtype: torch's, of the same.
        index: torch.int32.

    A call of `run` then ends in (seen rows [slots] int32, query positions [T] int32, scale, window).
    """
    return [
        seen_module(head_dim, str(dtype).removeprefix("torch.")), dtype, dtype, dtype, index, head_dim, head_dim,
        ["seen", "position"], ["int32_t", "int32_t"], ["sm_scale", "window"], ["double", "int64_t"],
        SEEN_NAME, SEEN_SOURCE,
    ]  # fmt: skip


_SHORT = {"bfloat16": "bf16", "float16": "f16"}


def _module(kind: str, head_dim: int, dtype: str, end: str, *, windows: bool) -> str:
    kinds = "".join(f"_dtype_{x}_{_SHORT[dtype]}" for x in ("q", "kv", "o"))
    dims = f"head_dim_qk_{head_dim}_head_dim_vo_{head_dim}"
    name = f"batch_{kind}_with_kv_cache{kinds}_dtype_idx_i32_{dims}_posenc_0_use_swa_{windows}_use_logits_cap_False"
    return name + end


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model asks of FlashInfer."""

    head_dim: int
    dtype: str  # as settings name it
    group: int  # query heads for each key head
    full: bool = True  # whether some layers have no window
    windows: bool = False  # whether some layers have one

    def modules(self) -> list[str]:
        """Return the names of the modules, as FlashInfer names them."""
        of = (self.head_dim, self.dtype)
        prefill = [False, *([True] if self.windows else [])]  # masks take the module without windows
        names = [_module("prefill", *of, "_f16qk_False_kv_stride_equal", windows=w) for w in prefill]
        if self.group in CORE_GROUPS:
            names += [
                _module("decode", *of, "", windows=w)
                for w, there in ((False, self.full), (True, self.windows))
                if there
            ]
        return [*names, seen_module(*of), QUANTIZATION]


def package() -> Path | None:
    """Return the directory of the installed package, or None. FlashInfer isn't imported."""
    spec = util.find_spec("flashinfer")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def lacks(needs: Needs, capability: str, root: Path | None = None) -> str:
    """Return what keeps the FlashInfer path from serving a model on this machine, a clause, or "" if nothing does.

    Args:
        needs: of the model.
        capability: of the device, such as "9.0".
        root: the package's directory; None: the installed one.
    """
    if needs.dtype not in DTYPES:
        return f"FlashInfer's kernels don't take {needs.dtype}"
    if needs.head_dim not in HEAD_DIMS:
        return f"FlashInfer has no kernels for heads of {needs.head_dim}"
    root = root or package()
    if root is None:
        return "flashinfer-python is not installed; it comes with tartlet[flashinfer]"
    try:
        version = metadata.version("flashinfer-python")
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    if version != VERSION:
        return f"flashinfer-python is {version}, and only {VERSION} is tested"
    missing, tools = unbuilt(needs, capability, root), tools_lack(root)
    return f"{missing}, and {tools}" if missing and tools else ""


def built(root: Path, name: str, capability: str) -> bool:
    """Return whether the package has a module, built for devices of this capability."""
    if not (root / "data" / "aot" / name / f"{name}.so").is_file():
        return False
    said = manifest(root)
    archs = [str(arch).rstrip("af") for arch in said["architectures"]]
    return name in said["modules"] and capability in archs


def manifest(root: Path) -> dict[str, Any]:
    """Return what `MANIFEST` says of the package; see `manifest_in`."""
    return manifest_in(root / "data" / "aot")


def manifest_in(folder: Path) -> dict[str, Any]:
    """Return what `MANIFEST` says of a folder: `architectures`, and by the names of `modules` how they were built.

    Both are empty if no module was built, or if they were built from another release than `VERSION`.
    """
    try:
        said = json.loads((folder / MANIFEST).read_text())
        if said["version"] == VERSION:
            return {"architectures": list(said["architectures"]), "modules": dict(said["modules"])}
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return {"architectures": [], "modules": {}}


def unbuilt(needs: Needs, capability: str, root: Path | None = None) -> str:
    """Return a clause that names how many modules would be compiled when they are needed, or ""; see `lacks`."""
    root = root or package()
    missing = [name for name in needs.modules() if root is None or not built(root, name, capability)]
    return f"{len(missing)} of FlashInfer's modules aren't built ({missing[0]})" if missing else ""


def tools_lack(root: Path) -> str:
    """Return what building modules lacks here, a clause, or "".

    Args:
        root: the package's directory.
    """
    if os.environ.get("FLASHINFER_DISABLE_JIT"):
        return "FLASHINFER_DISABLE_JIT forbids to build them"
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc") or shutil.which(str(Path(home) / "bin" / "nvcc"))
    there = {"nvcc": nvcc, "ninja": shutil.which("ninja"), "c++": shutil.which(os.environ.get("CXX", "c++"))}
    absent = [name for name, path in there.items() if path is None]
    if absent:
        return f"building them needs {' and '.join(absent)}"
    if not (root / CCCL).is_file():
        return f"building them needs the file {root / CCCL}, which the wheel of flashinfer-python {VERSION} brings"
    cache = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    return "" if os.access(cache, os.W_OK) else f"{cache} isn't writable (FLASHINFER_WORKSPACE_BASE names another)"


def every_need(head_dims: Sequence[int] = HEAD_DIMS) -> Iterator[Needs]:
    """All that models with heads of these sizes can ask for; an image has what models of all sizes ask for."""
    for head_dim in head_dims:
        for dtype in DTYPES:
            yield Needs(head_dim, dtype, group=CORE_GROUPS[0], full=True, windows=True)


def specs(needs: Needs) -> dict[str, Any]:
    """Return FlashInfer's recipe for each module by name; FlashInfer is imported, and writes the sources."""
    import torch
    from flashinfer.jit.attention import modules
    from flashinfer.jit.quantization import gen_quantization_module

    dtype, dim = getattr(torch, needs.dtype), needs.head_dim
    kinds = (dtype, dtype, dtype, torch.int32, dim, dim, 0)
    made = [
        *(
            modules._gen_batch_prefill_primary_module("fa2", *kinds, windows, False, False)  # noqa: SLF001 - what its wrappers load
            for windows in (False, True)
        ),
        *(modules.gen_batch_decode_module(*kinds, windows, False) for windows in (False, True)),
        modules.gen_customize_batch_prefill_module("fa2", *seen_arguments(dim, dtype, torch.int32), **SEEN_OPTIONS),
        gen_quantization_module(),
    ]
    found = {spec.name: spec for spec in made}
    return {name: found[name] for name in needs.modules()}


def load(needs: Needs) -> str:
    """Load a model's modules now, and build those that aren't built, so that no program waits for that.

    Returns:
        What went wrong, a clause, or "" if nothing did.
    """
    try:
        for spec in specs(needs).values():
            try:
                spec.build_and_load()
            except Exception:
                if spec.is_aot:  # FlashInfer has logged why, and says that there is none
                    spec.load(spec.aot_path)
                raise
    except Exception as error:  # noqa: BLE001 - whatever a compiler or loader raises, other kernels serve
        return f"FlashInfer's modules can't be loaded ({type(error).__name__}: {error})"
    return ""
