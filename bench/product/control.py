"""Names of `tartlet_control`."""

from tartlet_control.core.core import Core as Core
from tartlet_control.core.lifecycle import StartRequest as StartRequest
