"""Copies between host and device through pinned memory, so that the host need not wait for them.

Two pinned arenas in each direction are used in turn. An arena is written again only after the copy that used it has
ended, which an event tells. On other devices the same calls copy in the
usual way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

I32 = npt.NDArray[np.int32]
_FIRST_WORDS: Final = 1 << 14
"""int32 numbers of an arena at first; an arena grows to what a copy needs."""
_ALIGNED: Final = 64
"""int32 numbers between the starts of arrays that travel in one copy. Triton compiles a kernel again for a pointer that
isn't at a multiple of 16 bytes."""
_MOST_PINNED_BYTES: Final = 16 << 20
"""Of bytes in one copy. Larger ones are rare, and an arena keeps what it has grown to."""

_PADDING: Final = np.zeros(_ALIGNED, np.int32)


class _Arena:
    """Pinned memory and the event of the last copy that used it."""

    def __init__(self) -> None:
        self._memory = torch.empty(_FIRST_WORDS, dtype=torch.int32, pin_memory=True)
        self._copied = torch.cuda.Event()
        self._used = False

    def take(self, words: int) -> Tensor:
        """Return memory [words] that no copy uses any more."""
        if self._used:
            self._copied.synchronize()
        if words > len(self._memory):
            self._memory = torch.empty(2 * words, dtype=torch.int32, pin_memory=True)
        return self._memory[:words]

    def mark(self) -> None:
        """Note that the current stream's last copy uses the memory."""
        self._copied.record()
        self._used = True

    def wait(self) -> None:
        """Wait for the last copy."""
        self._copied.synchronize()

    def done(self) -> bool:
        """Return whether the last copy has ended."""
        return bool(self._copied.query())


class Download:
    """A copy to the host that may be under way."""

    def __init__(self, values: Tensor, arena: _Arena | None = None) -> None:
        self._values, self._arena = values, arena

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return self._arena is None or self._arena.done()

    def wait(self) -> I32:
        """Wait for the copy and return the values, flat. At most one later copy may have begun."""
        if self._arena is not None:
            self._arena.wait()
        return np.array(self._values.numpy(), np.int32).reshape(-1)


class Transfers:
    """The copies of one engine."""

    def __init__(self, device: str) -> None:
        """Make the arenas of a device by torch's name."""
        self._device = device
        self._pinned = device.startswith("cuda")
        self._up = [_Arena(), _Arena()] if self._pinned else []
        self._down = [_Arena(), _Arena()] if self._pinned else []

    def up(self, parts: Sequence[npt.NDArray[np.generic]]) -> list[Tensor]:
        """Copy arrays of integers to the device in one copy; return them there as flat int32 tensors.

        Each starts at a multiple of 256 bytes.
        """
        flat = [np.ascontiguousarray(part, np.int32).reshape(-1) for part in parts]
        rooms = [-(-len(part) // _ALIGNED) * _ALIGNED for part in flat]
        spaced = [array for part in flat for array in (part, _PADDING[: -len(part) % _ALIGNED])]
        if not self._pinned:
            whole = torch.from_numpy(np.concatenate(spaced)).to(self._device)
        else:
            whole = torch.empty(sum(rooms), dtype=torch.int32, device=self._device)
            self._send(spaced, whole)
        return [view[: len(part)] for view, part in zip(whole.split(rooms), flat, strict=True)]

    def up_bytes(self, values: npt.NDArray[np.uint8]) -> Tensor:
        """Copy bytes to the device; return them there as a flat uint8 tensor."""
        flat = np.ascontiguousarray(values).reshape(-1)
        if not self._pinned or flat.nbytes > _MOST_PINNED_BYTES:
            return torch.from_numpy(flat).to(self._device)
        words = np.zeros(-(-len(flat) // 4), np.int32)
        words.view(np.uint8)[: len(flat)] = flat
        (there,) = self.up([words])
        return there.view(torch.uint8)[: len(flat)]

    def up_into(self, target: Tensor, parts: Sequence[npt.NDArray[np.generic]]) -> list[Tensor]:
        """Copy arrays of integers into a flat int32 tensor of the device, one behind the other; return their views.

        The caller sees to it that they fit.
        """
        flat = [np.ascontiguousarray(part, np.int32).reshape(-1) for part in parts]
        total = sum(map(len, flat))
        whole = target[:total]
        if self._pinned:
            self._send(flat, whole)
        else:
            whole.copy_(torch.from_numpy(np.concatenate(flat)))
        return list(whole.split([len(part) for part in flat]))

    def down(self, values: Tensor) -> Download:
        """Begin to copy a contiguous int32 tensor of the device to the host."""
        if not self._pinned:
            return Download(values.to("cpu", copy=True))
        self._down.reverse()
        arena = self._down[0]
        host = arena.take(values.numel())
        host.copy_(values.reshape(-1), non_blocking=True)
        arena.mark()
        return Download(host, arena)

    def _send(self, flat: Sequence[I32], target: Tensor) -> None:
        self._up.reverse()
        arena = self._up[0]
        memory = arena.take(len(target))
        np.concatenate(flat, out=memory.numpy())
        target.copy_(memory, non_blocking=True)
        arena.mark()
