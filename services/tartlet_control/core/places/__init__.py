"""Which engine a context takes, and who gives way when an engine's memory is full.

What gathers views for `placement` and `order`, and applies what these decide, belongs here. The decisions themselves
never do: they are pure.
"""
