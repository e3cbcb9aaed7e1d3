"""Launches and calls that programs make, as clients of their children.

Never here: what a parent is told of its children, and in which order; `tartlet_runtime.children` decides that.
"""
