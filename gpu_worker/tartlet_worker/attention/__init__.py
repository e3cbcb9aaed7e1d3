"""Attention over paged keys and values: one interface (`base`), several implementations.

Belongs here: implementations of `Attention`. Never here: commands, masks of pages, holes; a batch gives all of these
as one number for each column.
"""
