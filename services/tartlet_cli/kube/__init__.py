"""The commands that talk to a Kubernetes API server: `apply`, `crds`, `run --kube` and the plugin `kubectl tartlet`."""
