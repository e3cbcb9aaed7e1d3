"""Journals: everything that a program was told, in a file, and running a program again from its file.

Never here: when a journal is written (the driver decides that), or why a program ended.
"""
