"""Benchmarks: each prints a table of what it measured, with its machine and goals (`tartlet bench NAME`)."""

from tartlet_common.rpc import grpc_io as _grpc_io  # noqa: F401 - before gRPC is imported
