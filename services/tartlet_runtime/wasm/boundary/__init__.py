"""The C API of wasmtime through ctypes, and the boundary that polls guests and carries bytes in and out.

`shim.c` and its Python twin do the same work. Never here: which functions a guest may call, or when a guest runs.
"""
