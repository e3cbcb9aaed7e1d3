"""Who may connect to whom: NetworkPolicies evaluated, flows that must and must not pass, connections really seen.

Modules here are pure functions of manifests and of the text that `conntrack` prints. They never ask a cluster.
"""
