"""The `tartlet` command, which stands on the client and starts roles as processes; it never imports a role.

`main` says which command is where. A command's module is imported when the command is called, so that `--help` and
quick commands stay quick: modules import what is slow (gRPC, pydantic, kubernetes) inside functions.
"""
