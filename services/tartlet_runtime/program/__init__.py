"""One program from launch to end, and the driver that runs all programs on the loop's thread.

Here are a program's state, its inbox, its output, what it used, and the order in which programs take turns. Never here:
gRPC services, how a guest is run (`guests`), or how control is reached (`link`); these are reached through protocols.
"""
