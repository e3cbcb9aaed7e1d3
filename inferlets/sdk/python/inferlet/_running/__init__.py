"""How a program is run: its source in, its event loop, its output, its result out.

Belongs here: what a host of programs calls, in the sandbox and outside it. Never here: anything that a program
imports.
"""
