"""The commands: one module for each, or for a few that belong together (`programs`).

A module here reads options, calls the client or starts roles, and prints. What several commands need never stands
here: it belongs in `console`, or in `cluster` when it concerns Kubernetes.
"""
