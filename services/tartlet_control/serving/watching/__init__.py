"""What watchers of control are told as it changes.

What belongs here compares the core's state with the state that a watcher knows. Nothing here ever changes the core.
"""
