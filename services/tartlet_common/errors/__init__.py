"""The registry of errors, and the exit codes that processes derive from it.

An error is data: a number, fields, a message and a remedy. Code that sends, logs or shows errors never stands here, but
in `rpc`, `process` and the command line.
"""
