"""The registry of calls: each call's fields and payload, who answers it, its errors and the test that shows it.

From it come the packers of each SDK, the ABI's vectors, the arguments of hostile tests and docs/calls.md. What a call
does never stands here: control's own files, the runtime's and the worker's say that.
"""
