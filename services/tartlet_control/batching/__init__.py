"""When a step is sent to an engine, and which waiting commands are in it (Pie 5.2).

Policies and their timing rules belong here, as functions of values and of the time that they are given. Changing
queues, translating ids and sending steps never do.
"""
