"""How programs go on when a process that held a part of them has died.

Belongs here: what the core does with programs that come back. Never here: frames, streams, or what commands mean.
"""
