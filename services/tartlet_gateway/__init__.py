"""The gateway role: HTTP in front of a runtime, in the forms that existing clients speak.

What belongs here: reading and checking HTTP requests, launching one inferlet for each, and writing the inferlet's
events as an API's reply. The gateway never keeps state that a restart would lose, never tokenizes, and never talks to
control's scheduler or to an engine: every request is a run of an inferlet.
"""
