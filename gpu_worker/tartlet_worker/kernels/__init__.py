"""C kernels for the CPU: their build, and the library that calls them.

`python -m tartlet_worker.kernels.build` compiles the kernels for this machine's CPU. They need AVX-512 with BF16, use
AMX where the CPU has it, and run on one thread. Nothing outside this package ever relies on a compiler: without the
kernels, torch does their work.
"""

from __future__ import annotations

from tartlet_worker.kernels.library import available, library

__all__ = ["available", "library"]
