"""Names of `tartlet_control`."""

from tartlet_control.core.core import Core as Core
from tartlet_control.core.lifecycle import StartRequest as StartRequest
from tartlet_control.order.orders import Order as Order
from tartlet_control.simulation.compare import known as known
from tartlet_control.simulation.costs import Costs as Costs
from tartlet_control.simulation.load import Trace as Trace
from tartlet_control.simulation.load import generate as generate
from tartlet_control.simulation.load import spaced as spaced
from tartlet_control.simulation.loop import simulate as simulate

SIMULATED = "simulated"
BATCHING = "batching"
"""The setting of control that names the batching policy; its options add `_k` and `_t_s`."""


def idle(core: Core) -> bool:
    """Tell whether control has no command left to run."""
    return core.idle
