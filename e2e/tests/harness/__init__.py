"""Tests of the cluster harness itself, which start, interrupt and break clusters of their own."""
