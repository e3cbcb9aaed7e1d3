"""`tartlet bench operator`: the operator with thousands of Inferlets on a real API server.

Only this benchmark and what it alone needs; what others share is in `bench.harness`.
"""
