"""Loaded modules, linked to the functions that a guest may call: our host interface and an allow-listed part of WASI.

Never here: when a guest runs, or how its end is reported.
"""
