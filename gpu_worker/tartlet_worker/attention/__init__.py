"""Attention over paged keys and values: one interface (`base`), several implementations."""
