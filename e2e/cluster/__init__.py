"""Brings up a Kubernetes cluster for the tests and takes it down again.

Modules here know clusters, images and versions. They never know what a test checks.
"""
