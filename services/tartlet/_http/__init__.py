"""The client's calls over HTTP, behind a gateway.

What belongs here needs httpx, which is an extra, so it is imported only for an address of a gateway. Nothing here ever
imports `tartlet.client`, which puts these calls in front of its own.
"""
