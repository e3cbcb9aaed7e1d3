"""What every command needs: options, calls of the client, output to a terminal, exit codes, places of files.

Nothing here is a command, and a module here never imports one.
"""
