"""The calls of a program beside those of a queue object: arguments, messages, models, text, the paper's functions.

Belongs here: what the runtime answers without an engine, and the function form of a queue's methods. Never here:
sequences of tokens, which contexts keep.
"""
