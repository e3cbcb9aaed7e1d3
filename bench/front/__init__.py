"""The HTTP gateway's costs: added latency, CPU time, streams that stay open, and the page's script time.

Never here: what the gateway's answers are. Tests check these.
"""
