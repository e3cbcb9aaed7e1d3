"""Modules that are generated from the host's own tables: constants of the ABI, and the tree of errors.

Belongs here: what `make generate` writes. Never here: a line written by hand.
"""
