"""Importing this has gRPC's sockets served by the threads that wait for them: half the time and CPU of a message.

Its EventEngine, which it uses otherwise, hands every message on between threads of its own (ADR 16). And gRPC is told
that nothing of ours forks to go on with it in the child: it would write a line about every process that is started.
gRPC looks once, when it is imported, so the entry of a process imports this first. The client library leaves the choice
to its program.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
