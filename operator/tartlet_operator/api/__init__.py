"""The custom resources as typed models, and the values they are made of: conditions, reasons, times, names.

`crds/` and the reference page are generated from these models. Everything here is a value or a pure function, and never
does I/O.
"""

from __future__ import annotations

from tartlet_operator.api.common import GROUP, VERSION, Condition, Resource
from tartlet_operator.api.engine_pool import ENGINE_POOL, EnginePool
from tartlet_operator.api.inferlet import INFERLET, Inferlet
from tartlet_operator.api.inferlet_run import INFERLET_RUN, InferletRun

RESOURCES = (ENGINE_POOL, INFERLET, INFERLET_RUN)

__all__ = [
    "ENGINE_POOL",
    "GROUP",
    "INFERLET",
    "INFERLET_RUN",
    "RESOURCES",
    "VERSION",
    "Condition",
    "EnginePool",
    "Inferlet",
    "InferletRun",
    "Resource",
]
