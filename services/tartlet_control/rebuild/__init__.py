"""What control knows of the state on engines, and which commands make that state again.

Belongs here: notes of settled commands, and plans. Never here: queues in motion, frames, clocks, or a choice of engine.
"""
