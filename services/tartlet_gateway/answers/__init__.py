"""One run of an inferlet answered in the form of an API whose streams consist of named events.

What belongs here launches the run and follows its events. Nothing here ever knows the fields of an API.
"""
