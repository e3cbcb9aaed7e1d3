"""The web page: files that need no build step and no other server.

What belongs here serves the files of `static`. The page gets its data from the same API as every other client: nothing
here ever asks control or a runtime.
"""
