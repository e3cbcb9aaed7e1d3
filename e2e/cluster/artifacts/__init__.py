"""Things that are built once and cached: Kubernetes, CoreDNS, Helm, images, and the packages that they need.

Modules here read the repository and the cache. They never start a cluster and never look at one.
"""
