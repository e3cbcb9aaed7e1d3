"""The runtime: runs inferlets in WebAssembly and forwards their commands, a tick at a time."""
