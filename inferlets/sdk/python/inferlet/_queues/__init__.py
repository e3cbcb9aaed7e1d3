"""Command queues: what a queue allocates, computes and frees, and what it knows of its failures.

Belongs here: every command that takes its turn in a queue. Never here: contexts, and calls that the runtime answers
without an engine.
"""
