"""How the demo model is made: generated tasks, a tokenizer, a training loop, and the evaluation behind its model card.

Read in this order: `vocabulary` (names and phrases), `tasks`, `toolbox`, `tool_tasks` and `recall` (what the model
learns), `registry` (all tasks by name, and which problems the model never sees), `text` (markers, tokenizer, chat
template), `long_chats` and `packing` (rows of tokens), `feed` (batches on the device), `train` and `evaluate` (the two
commands), `positions` (answers by their place in long chats).
"""
