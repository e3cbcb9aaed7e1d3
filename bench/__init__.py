"""Benchmarks: a module each, started by `tartlet bench NAME`; prints a table with its goals, writes JSON and plots.

What they share is in `bench.harness`. Nothing here is imported by the product, and no test measures time with it.
"""

from tartlet_common.rpc import grpc_io as _grpc_io  # noqa: F401 - before gRPC is imported
