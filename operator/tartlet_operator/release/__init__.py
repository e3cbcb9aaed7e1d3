"""The release that the operator belongs to: the pools of its values, and its uninstall.

Nothing about Deployments, pods or engines belongs here: see `pools`.
"""
