"""Connections to addresses that users name: which of them may be made, and the session that makes no other.

Belongs here: what every download for a user goes through. Never here: the API server and Tartlet's roles, which the
administrator names.
"""
