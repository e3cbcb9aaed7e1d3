"""What a `Context` is made of: its pages, its text on the way to tokens, and generation.

Belongs here: run-ahead, stop conditions at work, sharing of pages between forks. Never here: new commands; a context
uses those that every program has.
"""
