"""What control and a worker tell each other: an engine's description, its steps and their results, and their bytes.

Values and codecs only. Deciding what goes into a step belongs to control, computing a step to the worker. A module here
never uses a transport, a clock or tensors.
"""
