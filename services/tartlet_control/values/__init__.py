"""The tenants' store of keys and values beside control's core: in a Redis where it outlives control, and for gateways.

Belongs here: what keeps values in a Redis, what lets programs hear of a write when it is stored there, and the service
that gateways ask. Never here: what a request does, which `tables.shared.store` decides.
"""
