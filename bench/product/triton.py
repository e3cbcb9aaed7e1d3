"""Names of `tartlet_worker` whose modules import Triton, which isn't everywhere that torch is."""

from tartlet_worker.attention import triton_paged as triton_paged
from tartlet_worker.sampling import triton_log_sums as triton_log_sums
