"""The runtime: runs inferlets in WebAssembly and forwards their commands, a turn at a time.

Packages, from the bottom: `wasm` (the sandbox, which knows nothing of Tartlet), `abi` (what passes between a guest
and the runtime), `children` and `web` (programs and HTTP requests that programs start), `journal`, `answers`
(commands that the runtime answers itself), `program` (one program and the driver that runs all of them), `guests`
(what runs a program's code), `link` (the stream to control), `serving` (what clients call). `app` wires them
together; nothing else belongs at this level.
"""
