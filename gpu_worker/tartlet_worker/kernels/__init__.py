"""C kernels for the CPU, built where there is a compiler; everything works without them.

`python -m tartlet_worker.kernels.build` compiles them for this machine's CPU. They need AVX-512 with BF16 and use AMX
where it is there; they run on one thread.
"""

from __future__ import annotations

from tartlet_worker.kernels.library import available, library

__all__ = ["available", "library"]
