"""One handler for each kind of batch: which commands run, and what they do to the pools.

Belongs here: checks of commands, plans of batches, statuses and answers. Never here: weights and layers, which a
handler is given as a function.
"""
