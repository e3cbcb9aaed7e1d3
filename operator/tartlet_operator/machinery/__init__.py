"""The parts that all kinds share: the watch, the work queue, retries, resync, and long-lived services.

A `Context` hands these parts to the reconcilers. What only one kind decides stands in the package of that kind; a
module here never imports from those packages.
"""
