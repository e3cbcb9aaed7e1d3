"""Names of `tartlet_control`."""

from tartlet_control.core.core import Core as Core
from tartlet_control.core.lifecycle import StartRequest as StartRequest

BATCHING = "batching"
"""The setting of control that names the batching policy; its options add `_k` and `_t_s`."""


def idle(core: Core) -> bool:
    """Tell whether control has no command left to run."""
    return core.idle
