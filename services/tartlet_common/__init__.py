"""What more than one role needs: the ABI, errors, settings, steps, calls between processes, telemetry, process start.

Modules directly here are the ABI (`abi`), time as a dependency (`clock`) and JSON that is YAML as well (`yaml_json`).
This package never imports a role, torch, wasmtime or kopf, and what only one role needs never stands here.
"""
