"""Decoders: the pass of a batch's tokens through a model's layers, over keys and values in pages.

Belongs here: weights in the layout that a decoder wants, matrix multiplications, rotary embeddings. Never here: names
of model families, checks of commands, choices between decoders.
"""
