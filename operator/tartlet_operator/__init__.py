"""The operator: keeps EnginePools, Inferlets and InferletRuns as their specs say.

Packages, from the bottom up: `api` (types), `cluster` and `control` (requests), `machinery` (queue, watch, retries),
then `pools`, `inferlets` and `runs`, which decide. Here stand only the wiring (`app`) and the entry point. A package
never imports one above it.
"""
