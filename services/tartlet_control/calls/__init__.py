"""The calls that programs put into command queues: how each is checked, ordered and packed for an engine.

What is particular to one call belongs here. Batching policies, the life of programs and anything that reads a clock,
a file or a stream never do.
"""
