"""Names of `tartlet_worker` that the proof on a GPU uses; imports torch."""

from tartlet_common.engine.step import EMPTY_I32 as EMPTY_I32
from tartlet_common.engine.step import Swaps as Swaps
from tartlet_common.engine.step import TableChanges as TableChanges
from tartlet_worker.attention import flashinfer_modules as flashinfer_modules
from tartlet_worker.attention.base import AttentionBatch as AttentionBatch
from tartlet_worker.attention.base import TableColumns as TableColumns
from tartlet_worker.attention.flashinfer import FlashInfer as FlashInfer
from tartlet_worker.attention.shape import Shape as Shape
from tartlet_worker.attention.shape import classify as classify
from tartlet_worker.attention.torch_gather import TorchGather as TorchGather
from tartlet_worker.checkpoints.model_config import ModelConfig as ModelConfig
from tartlet_worker.checkpoints.model_config import parse_config as parse_config
from tartlet_worker.checkpoints.tensors import tensor_shapes as tensor_shapes
from tartlet_worker.graphs.buckets import USUAL as USUAL
from tartlet_worker.graphs.buckets import bucket_of as bucket_of
from tartlet_worker.graphs.capture import CudaCapture as CudaCapture
from tartlet_worker.graphs.decoder import GraphDecoder as GraphDecoder
from tartlet_worker.models import torch_decoder as torch_decoder
from tartlet_worker.models.torch_decoder import TorchDecoder as TorchDecoder
from tartlet_worker.pools import Pools as Pools
from tartlet_worker.pools import PoolSizes as PoolSizes
from tartlet_worker.sampling.torch_sampler import TorchSampler as TorchSampler
from tartlet_worker.torch_engine import attention_choice as attention_choice
from tartlet_worker.torch_engine.engine import TorchEngine as TorchEngine
from tartlet_worker.torch_engine.kv_budget import graph_bytes as graph_bytes
