"""The OpenAI API: requests checked, replies and errors built, routes.

What belongs here is the form of OpenAI's requests, chunks and errors. Nothing here ever opens a connection to a
runtime: that is `tartlet_gateway.runs`.
"""
