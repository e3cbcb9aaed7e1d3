"""Programs of several files: a directory, its archive, and what an archive may hold.

Belongs here: how a directory becomes an archive (`project`, `packing`), which packages it brings (`vendoring`) and what
is refused (`checking`). Never here: how a program imports from its archive; that is the SDK's
(`inferlet._running.bundle`), because it happens in the sandbox.
"""
