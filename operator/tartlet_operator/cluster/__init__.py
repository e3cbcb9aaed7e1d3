"""The API server as the operator uses it: how to reach it, read it, write to it, and hold its Lease.

Here belong requests to the API server and the forms of its replies. A module here never decides what an object should
be, and treats all kinds alike.
"""
