"""Decode steps as CUDA graphs: fixed numbers of rows over buffers that never move, captured once and replayed.

Belongs here: which batches a graph serves, the buffers, capturing, replaying. Never here: what a layer computes (the
decoder's), how rows attend (the attention's), and the meaning of a call.
"""
