"""Rows of an engine that outlive control: the digests that the worker keeps, and the rows that a worker brings along.

Belongs here: which page holds which row. Never here: which program gets it.
"""
