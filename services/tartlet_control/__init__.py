"""The control layer: it orders commands, batches them, and knows who holds what on which engine.

Tables, the calls of queues, batching, the state machine and its serving belong here, in this order of layers. Tensors
and the running of programs never do.
"""
