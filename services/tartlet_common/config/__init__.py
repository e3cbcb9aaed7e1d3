"""Settings of each role, where they come from, and the directories of a local Tartlet.

This package reads files and the environment, and returns values. It never starts, connects or creates anything that
the settings name. Every default has its one definition here.
"""
