"""Finds the error in the text of a Python traceback. Pure."""

from __future__ import annotations


def error_line(traceback: str) -> str:
    r"""Return the line that names the error: hints and notes may stand behind it.

    Example:
        >>> frames = 'Traceback (most recent call last):\n  File "a.py", line 1, in main\n    f()\n'
        >>> error_line(frames + "NoEngine: there is none\nStart one.")
        'NoEngine: there is none'
        >>> error_line("no traceback at all")
        'no traceback at all'
    """
    lines = traceback.strip().splitlines() or [""]
    frames = [at for at, line in enumerate(lines) if line.startswith('  File "')]
    behind = lines[frames[-1] + 1 :] if frames else []
    return next((line for line in behind if line and not line[0].isspace()), lines[-1])
