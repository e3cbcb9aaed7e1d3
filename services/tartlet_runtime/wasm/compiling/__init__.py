"""Modules compiled ahead of time: engine flags, the compiling process, and the cache of its results.

Never here: anything that instantiates or runs a module.
"""
