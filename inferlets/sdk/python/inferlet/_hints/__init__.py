"""What a failed program's user reads: tracebacks without our frames, and a line that says what to write instead.

Belongs here: recognising a failure by its exception. Never here: commands, and anything that a program which does not
fail would have to run.
"""
