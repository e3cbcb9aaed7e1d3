"""The stream to control: frames of all programs' commands up, frames of results down.

Never here: a program's state beyond what frames carry, or calls of clients.
"""
