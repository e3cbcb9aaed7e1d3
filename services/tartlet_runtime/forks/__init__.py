"""Programs that go on live from the middle of a recorded run, as new programs with other sources or arguments.

Belongs here: what is taken of the recorded journal, the program that begins with it, and recorded runs as clients read
and import them. Never here: takeovers, whose
programs stay the same ones (`program.recovered`), and replays without an engine (`timetravel`).
"""
