"""What several test modules share: programs, people, operators, calls and disturbances.

Helpers here use a cluster that a fixture hands them. They contain no tests and never bring a cluster up.
"""
