"""What control and a worker tell each other: an engine's description, its steps and their results, and their bytes.

Values and codecs only: deciding what goes into a step is the business of control, computing a step that of the worker.
No transport, no clock, no tensors.
"""
