"""Programs that go from one runtime to another.

Nothing here knows streams or stores: runtimes are sessions, and journals are names.
"""
