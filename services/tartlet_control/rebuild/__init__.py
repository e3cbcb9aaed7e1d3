"""What control knows of the state on engines, which commands make it again, and which engines could take it.

Belongs here: notes of settled commands, plans, and what of a log is undone. Never here: frames, clocks, or a choice
between engines.
"""
