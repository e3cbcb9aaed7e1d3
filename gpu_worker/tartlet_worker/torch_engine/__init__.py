"""The engine that runs Llama-family models: how one is loaded, and what it does with a step.

Belongs here: choices (device, decoder, attention, sampler), memory budgets, the dispatch of batches to handlers. Never
here: connections, and the meaning of a single call.
"""
