"""Commands that the runtime answers itself: arguments, messages, models, tokenizers, chat templates.

Work that takes long runs on threads of its own here, within bounds for each program. Never here: a program's state
machine, or commands for control. A program is seen only as the `Caller` protocol.
"""
