"""Benchmarks: each prints a table of what it measured, with its machine and goals (`tartlet bench NAME`)."""
