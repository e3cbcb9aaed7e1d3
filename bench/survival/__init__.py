"""Benchmarks of what programs outlive: processes that are killed at random, long contexts, engines that are lost."""
