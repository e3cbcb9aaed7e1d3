"""Where processes may connect to for users: addresses, hosts, and the check at each connection's socket.

What belongs here decides about an address or a URL that a user names. Nothing here ever sends or reads a byte.
"""
