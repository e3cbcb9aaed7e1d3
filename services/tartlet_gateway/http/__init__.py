"""HTTP as such: the server, its deadlines and bounds, whom it answers, and connections that break.

What belongs here knows requests, headers and bytes. Nothing here ever knows an API's fields, a model or a program.
"""
