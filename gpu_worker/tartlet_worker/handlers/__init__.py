"""Batched handlers: one module a family of calls, each gathers its columns, decides who runs, and applies."""
