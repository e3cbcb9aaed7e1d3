"""Inferlets: whether a source is valid and can run, and what the status says of it.

Here belongs what is decided about Inferlets. Only `reconcile` acts, through its `Context`; the other modules are pure
and never do I/O. Sources are fetched in `machinery`.
"""
