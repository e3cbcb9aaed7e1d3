"""What clients call: launches, attachments, messages, listings, and the table of programs behind them.

Never here: how a program runs, or how commands travel. Calls for programs of other runtimes are relayed from here.
"""
