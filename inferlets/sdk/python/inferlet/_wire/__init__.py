"""The wire between a program and its host: records and payloads out, answers in (docs/abi.md).

Belongs here: bytes, tickets, and who waits for which answer. Never here: what a call means, and checks of arguments
that a program passes.
"""
