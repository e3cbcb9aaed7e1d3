"""The memory of this process as one budget, of which programs, compilers and everything that is kept take parts.

What belongs here decides with numbers alone. Nothing here ever opens a program, a module or a socket. Whoever is about
to hold memory takes a part first and gives the part back when the memory is free.
"""
