"""The bonds between programs and the clients of their `run`: a program ends when its client has gone for good.

What belongs here decides on what it is told, and waits by a callable that it is given. Nothing here ever sees a call, a
connection or the program itself.
"""
