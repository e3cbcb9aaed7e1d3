"""The table of all operations: what the router serves and what the OpenAPI document says of it.

What belongs here names each path once. Nothing here ever knows how an operation is answered.
"""
