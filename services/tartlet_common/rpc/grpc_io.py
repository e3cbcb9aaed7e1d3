"""Sets the environment variables that make gRPC fast in our processes, when this module is imported.

gRPC's sockets are then served by the threads that wait for them, which halves the time and CPU of a message; its
default, the EventEngine, passes every message between threads of its own (ADR 16). gRPC's fork support is switched off
as well: it would print a line for every child process, and no child of ours uses gRPC after a fork.

gRPC reads the variables once, when it is imported, so the entry of a process imports this module first. The client
library leaves the choice to the program that uses it.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
