"""Runs of inferlets: which inferlet and model a request names, its launch, and its events as values.

What belongs here talks to the runtime with `tartlet.AsyncClient`. Nothing here ever knows the form of an HTTP API.
"""
