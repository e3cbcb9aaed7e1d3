"""A cluster that this machine runs itself: its configuration, keys, processes, control groups and kernel settings.

Modules here may use `artifacts`. They never know what the tests do, nor any other kind of cluster.
"""
