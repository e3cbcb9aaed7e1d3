"""The page directory: what control knows of pages and programs, kept where the next control finds it.

Names of contexts with the tokens that they stand for, which engine holds which rows, where programs are, and what past
runs used. Control's memory is what counts; the directory follows it in the background and may be lost at any time.

Belongs here: the entries' form, the stores, and what keeps a store equal to control's memory. Never here: a decision
that waits for a store.
"""
