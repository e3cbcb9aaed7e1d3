"""Names of `tartlet_runtime`; imports wasmtime."""

from tartlet_runtime.guests.build import build as build
from tartlet_runtime.wasm import Delivery as Delivery
from tartlet_runtime.wasm import Fiber as Fiber
from tartlet_runtime.wasm import HostConfig as HostConfig
from tartlet_runtime.wasm import LinkedModule as LinkedModule
from tartlet_runtime.wasm import Phase as Phase
from tartlet_runtime.wasm import QuietHooks as QuietHooks
from tartlet_runtime.wasm import WasmHost as WasmHost
from tartlet_runtime.wasm import default_cache_dir as default_cache_dir
