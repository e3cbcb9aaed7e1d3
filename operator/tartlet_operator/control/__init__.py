"""Control as the operator uses it: its engines, and its catalogue of inferlets.

Here belong calls to control and the entries of its catalogue. A module here never talks to the API server.
"""
