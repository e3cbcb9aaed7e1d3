"""What several benchmarks share: tables and files, provenance, intervals, stacks to measure.

Never a measurement: each of those is a module of `bench`.
"""
