"""What passes between a guest and the runtime, and the bounds on it: submissions, deliveries, the `Guest` protocol.

Never here: streams, clocks, files, or anything that knows a program's state.
"""
