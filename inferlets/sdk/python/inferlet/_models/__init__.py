"""Models and their text: which models there are, and texts, tokens and chats on their way between each other.

Belongs here: calls that the runtime answers for a model, without a queue and without an engine. Never here: commands
of a queue.
"""
