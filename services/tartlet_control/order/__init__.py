"""Which program's commands go first when an engine can't take all that waits (Autellix 4.2).

The book of what programs used and waited for, the orders, and the history that one order learns from belong here, as
functions of values and of the time that they are given. Queues of commands, steps and clocks never do.
"""
