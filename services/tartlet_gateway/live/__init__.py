"""The state of engines and programs for the web page, as it changes.

One stream from control serves all pages of a tenant. Nothing here keeps state beyond the last page's leave, and nothing
here asks control again and again.
"""
