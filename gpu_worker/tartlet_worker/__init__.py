"""The worker: weights, KV pages and sampling on the device, one batch after another.

Belongs here, beside the packages: the `Engine` protocol, the pools that a torch engine keeps, and `app`, which wires
the process together. Never here: decisions about order, batching or ownership, which control makes.
"""
