"""Runs pytest for `make test` and for the tests on a cluster: in parts, and once more for the tests that failed.

Modules here start pytest processes and judge what these report. They never know what a test is about, and no test
imports them but their own.
"""
