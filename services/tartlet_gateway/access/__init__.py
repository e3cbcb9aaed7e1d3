"""Who may call, how often, and what is written down of it: keys, tenants' rates, the audit log.

What belongs here is decided before an API sees a request. Nothing here ever reads a request's body.
"""
