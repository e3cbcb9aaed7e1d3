"""What runs a program's code: a fiber in the sandbox, or a process of the client's over a socket.

Here also is the set-up that builds the Python component (`python -m tartlet_runtime.guests.build`). Never here: when a
program runs, or what its commands mean.
"""
