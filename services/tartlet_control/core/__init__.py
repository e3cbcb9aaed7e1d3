"""The state machine of control: frames and results in, frames and steps out.

What changes the tables belongs here. Streams, files, asyncio and any clock but the injected one never do.
"""
