"""The commands that are about a cluster: `tartlet apply`, `tartlet crds` and the plugin `kubectl tartlet`.

`run --kube` is with the other commands. Requests to an API server never stand here: they belong in `cluster`.
"""
