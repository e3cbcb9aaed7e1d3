"""A Kubernetes cluster for the tests."""
