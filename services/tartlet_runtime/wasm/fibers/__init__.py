"""One running guest: its store, its fiber, where it stands, and how it ended.

Never here: pools, spares, or anything about several guests.
"""
