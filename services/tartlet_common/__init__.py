"""What more than one role needs: the ABI, errors, settings, steps, calls between processes, telemetry, process start.

Modules directly here depend on nothing of ours but `errors`: the ABI (`abi`), typed ids (`ids`), time as a dependency
(`clock`) and JSON that is YAML as well (`yaml_json`). Nothing here imports a role, torch, wasmtime or kopf.
"""
