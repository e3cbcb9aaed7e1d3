"""The tenants' store of keys and values where it outlives control: in a Redis.

Belongs here: what keeps values in a Redis, and lets programs hear of a write when it is stored there. Never here: what
a request does, which `tables.store` decides.
"""
