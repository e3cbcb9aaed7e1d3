"""A simulation of program scheduling: the orders that control follows, with engines and programs that only take time.

Workloads, the cost of a step and the loop over steps belong here. Orders are those of `tartlet_control.order`,
unchanged; nothing here is used while serving.
"""
