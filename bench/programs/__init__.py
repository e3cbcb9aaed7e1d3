"""Benchmarks of what programs do: grammars, techniques of decoding, and agents with tools."""
