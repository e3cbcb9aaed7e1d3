"""InferletRuns: what to do next about a run, what its status says, and programs that no run wants.

Here belongs what is decided about runs. Only `reconcile` and `orphans` act, through their `Context`; the other modules
are pure and never do I/O. Programs are followed in `machinery`.
"""
