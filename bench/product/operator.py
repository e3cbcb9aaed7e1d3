"""Names of `tartlet_operator`, and of the processes that its tests start."""

from tartlet_operator.api.common import API_VERSION as API_VERSION
from tests.operator.api_server import TOKEN as TOKEN
from tests.operator.api_server import ApiServer as ApiServer
from tests.operator.api_server import started as started
from tests.operator.operator_process import OperatorProcess as OperatorProcess
