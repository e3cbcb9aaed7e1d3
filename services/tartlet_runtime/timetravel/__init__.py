"""Recorded programs, run again on a machine without an engine: replays, debuggers, comparisons with a new version.

Belongs here: the commands behind `tartlet replay`, `tartlet test` and `tartlet journals`, each a process of its own.
Never here: what a running runtime does with journals.
"""
