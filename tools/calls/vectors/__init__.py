"""The ABI's test vectors: for each call, arguments and the record that an SDK must make of them.

The bytes come from the registry's layouts alone. An SDK's code never takes part in making them.
"""
