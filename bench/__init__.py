"""Benchmarks: a module each, started by `tartlet bench NAME`; prints a table with its goals, writes JSON and plots.

What they share is in `bench.harness`. Nothing here is imported by the product, and no test measures time with it.
"""

from bench.product import before_grpc as _before_grpc  # noqa: F401 - before anything here imports gRPC
