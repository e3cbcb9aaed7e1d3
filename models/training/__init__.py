"""How the demo model is made: generated tasks, a tokenizer, a training loop, and the evaluation behind its model card.

Read in this order: `vocabulary` (names and phrases), `tasks` (what the model learns), `split` (what it never sees),
`text` (markers, tokenizer, chat template), `packing` (rows of tokens), `train` and `evaluate` (the two commands),
`positions` (answers by their place in long chats).
"""
