"""Rows that programs of one tenant share without knowing of each other: which prompts find rows that an engine has.

Belongs here: what a queue's next commands may take over, and what a program leaves to others. Never here: the books of
single engines (`tables`), frames, clocks, or Redis.
"""
