"""From logits to tokens: filters, draws and the noise that keys them.

Belongs here: samplers and their random numbers. Never here: embeds, slots and stop tokens, which the handlers own.
"""
