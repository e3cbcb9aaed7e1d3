"""The handlers of all kinds of batches. A kind without one fails the import of this module.

All modules of the package are imported, so that a handler needs no more than its decorator.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tartlet_common.engine.step import Kind, check_covers
from tartlet_worker import handlers
from tartlet_worker.handlers.registration import HANDLERS

__all__ = ["HANDLERS"]

for _module in iter_modules(handlers.__path__, f"{handlers.__name__}."):
    import_module(_module.name)

check_covers(HANDLERS, Kind, __name__)
