"""The names inside the product that benchmarks use, a module a role: where a role moves a name, one line changes here.

Only imports. The roles are modules of their own because importing one of them costs what its process costs: torch,
wasmtime, kopf.
"""
