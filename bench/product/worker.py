"""Names of `tartlet_worker`; imports torch."""

from tartlet_worker import app as app
from tartlet_worker.checkpoints.random_checkpoint import LLAMA_88M as LLAMA_88M
from tartlet_worker.checkpoints.random_checkpoint import random_checkpoint as random_checkpoint
from tartlet_worker.engine import Engine as Engine
from tartlet_worker.fake.engine import FakeEngine as FakeEngine
from tartlet_worker.fake.state import FakeOptions as FakeOptions
from tartlet_worker.kernels.library import NEEDED_CPU_FLAGS as NEEDED_CPU_FLAGS
from tartlet_worker.kernels.library import cpu_flags as cpu_flags
from tartlet_worker.torch_engine.loader import EngineOptions as EngineOptions
from tartlet_worker.torch_engine.loader import load_engine as load_engine
