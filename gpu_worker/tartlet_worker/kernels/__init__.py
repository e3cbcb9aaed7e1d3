"""C kernels for the CPU: their sources, how they are built, and the loaded library. An engine works without them too.

`python -m tartlet_worker.kernels.build` compiles the kernels for this machine's CPU. They need AVX-512 with BF16, use
AMX if the CPU has it, and run on one thread.

Belongs here: C sources, compiling, loading, the structures that cross the boundary. Never here: torch, and the choice
whether an engine uses the kernels.
"""

from __future__ import annotations

from tartlet_worker.kernels.library import available, library

__all__ = ["available", "library"]
