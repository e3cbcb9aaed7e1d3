"""Serving one engine to control: the stream, and the thread that runs the engine's steps.

Belongs here: connections, frames, queues between threads, draining. Never here: torch, or anything that knows what a
command computes.
"""
