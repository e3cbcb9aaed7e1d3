"""EnginePools: the Deployment that a pool becomes, what its pods tell, and what its status says.

Here belongs what is decided about pools. Only `reconcile` acts, through its `Context`; the other modules are pure and
never do I/O.
"""
