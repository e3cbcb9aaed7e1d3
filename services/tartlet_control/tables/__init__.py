"""What control knows: programs with their queues, runtimes, engines with their pools, idempotency keys.

Data and the bookkeeping that keeps it consistent belong here. Decisions (which command runs next), the meaning of
single calls, streams, files and clocks never do.
"""
