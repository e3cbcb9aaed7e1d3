"""What programs of one tenant share: the store of keys and values, values that expire, and topics.

What belongs here is a table in memory with its bounds. Nothing here ever knows a program's queues, or where values are
kept beside control.
"""
