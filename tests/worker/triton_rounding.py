"""Numbers in Triton's interpreter as devices compute them.

The interpreter cuts digits off where devices round to the nearest bf16. It multiplies matrices by numpy's library, in
which the bits of a row may depend on its place in the matrix; on devices they don't.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


def install(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter round float32 to the nearest bf16, ties to even."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(values, source, target, mode)
        return to_bf16(values)

    patch.setattr(interpreter, "_convert_float", rounded)


def install_rows_alike(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter compute all rows of a product alike, term by term, which takes longer."""
    from triton.runtime import interpreter

    def create_dot(_: Any, a: Any, b: Any, d: Any, *_precision: Any) -> Any:
        products = np.multiply(a.data[:, :, None], b.data[None], dtype=d.data.dtype)
        return interpreter.TensorHandle(products.sum(1) + d.data, d.dtype.scalar)

    patch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


def to_bf16(values: Any) -> Any:
    """Return the bits, uint16, of the nearest bf16 of each float32."""
    values = np.ascontiguousarray(values, np.float32)
    bits = values.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), nearest).astype(np.uint16)
