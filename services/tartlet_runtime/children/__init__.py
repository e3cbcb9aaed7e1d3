"""Programs that programs start: what is asked for, what a parent is told of its children, and in which order.

A parent is a client of its children: it launches them with a key that its ticket gives, sends messages with such keys,
and reads their output from offsets. So nothing happens twice when the parent begins again at another runtime.

Never here: how a launch is made, or where a program runs; `serving.spawning` knows that.
"""
