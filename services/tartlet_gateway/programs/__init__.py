"""Programs and the catalogue over HTTP: launched, followed, messaged, ended, put, listed.

What belongs here turns requests into calls of `tartlet.AsyncClient` and its answers into JSON, events and frames.
Nothing here ever talks to an engine, and nothing here keeps state.
"""
