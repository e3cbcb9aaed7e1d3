"""Which engine takes a program, and which program leaves an engine that has too much (Autellix 4.3).

Policies, the views that they are given and the balance between engines belong here, as functions of values. Engines,
programs' state, clocks and networks never do: `core.places` makes the views, and the simulation makes its own.
"""
