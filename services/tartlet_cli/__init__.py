"""The `tartlet` command, which stands on the client and starts roles as processes."""
