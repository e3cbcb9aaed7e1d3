"""Names of `tartlet_control`."""

from tartlet_control.core.core import Core as Core
from tartlet_control.core.lifecycle import StartRequest as StartRequest
from tartlet_control.directory.follower import Follower as Follower
from tartlet_control.directory.opening import follower_of as follower_of
from tartlet_control.order.orders import LIVE as LIVE
from tartlet_control.order.orders import Order as Order
from tartlet_control.placement.policies import Placement as Placement
from tartlet_control.rebuild.logs import settle
from tartlet_control.simulation.compare import known as known
from tartlet_control.simulation.costs import Costs as Costs
from tartlet_control.simulation.costs import write as write
from tartlet_control.simulation.load import Trace as Trace
from tartlet_control.simulation.load import generate as generate
from tartlet_control.simulation.load import spaced as spaced
from tartlet_control.simulation.loop import simulate as simulate
from tartlet_control.tables.engines import EngineState as EngineState
from tartlet_control.tables.ledger import PAGES as PAGES
from tartlet_control.tables.lineage import chain as chain
from tartlet_control.tables.lineage import root_of as root_of
from tartlet_control.tables.page_tables import PageTable as PageTable

SIMULATED = "simulated"
BATCHING = "batching"
"""The setting of control that names the batching policy; its options add `_k` and `_t_s`."""


def idle(core: Core) -> bool:
    """Tell whether control has no command left to run."""
    return core.idle


def note_all(core: Core) -> None:
    """Note in the programs' books all that has settled, which control does now and then."""
    for program in core.lifecycle.programs.values():
        for place in program.places.values():
            settle(place)
