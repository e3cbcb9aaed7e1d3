"""Makes a torch engine of a Hugging Face checkpoint directory."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from tartlet_common.config.lists import named_directories
from tartlet_common.config.settings import WorkerSettings
from tartlet_common.engine import defaults
from tartlet_common.engine.spec import EngineSpec, with_adapters
from tartlet_common.errors.registry import InvalidConfig, OutOfDeviceMemory
from tartlet_worker.attention import flashinfer_modules
from tartlet_worker.attention.base import TakesLater
from tartlet_worker.checkpoints.adapters import Adapter, read_adapters
from tartlet_worker.checkpoints.model_card import read_card
from tartlet_worker.checkpoints.model_config import ModelConfig, read_config
from tartlet_worker.checkpoints.tensors import digest, weight_files
from tartlet_worker.checkpoints.text_files import TOKENIZER, Texts, read_texts
from tartlet_worker.checkpoints.weights import WeightReader
from tartlet_worker.grammar import optional
from tartlet_worker.graphs.buckets import table_width
from tartlet_worker.host_pages import HostPages, buffer_bytes
from tartlet_worker.kernels import available
from tartlet_worker.kernels.library import MAX_GROUP
from tartlet_worker.models.base import Decoder
from tartlet_worker.models.c_decoder import CDecoder, supports
from tartlet_worker.models.torch_decoder import TorchDecoder
from tartlet_worker.pools import Pools, PoolSizes, page_bytes, pool_bytes
from tartlet_worker.torch_engine import attention_choice, graph_choice, sampler_choice
from tartlet_worker.torch_engine.engine import TorchEngine
from tartlet_worker.torch_engine.fast_path import Machine, resolve_dtype, slow_path_reasons, unserved
from tartlet_worker.torch_engine.kv_budget import batch_bytes, graph_bytes, kv_bytes
from tartlet_worker.torch_engine.lora_loader import LoraLoader
from tartlet_worker.torch_engine.memory import check_device, checked_room, free_bytes, use_device

log = logging.getLogger("tartlet.worker")

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is set up. All sizes are fixed for the engine's life."""

    name: str | None = None  # model name in Hello; None: the directory's
    dtype: str = "auto"  # "bfloat16", "float32", or "auto": the checkpoint's
    device: str = "cpu"  # or "cuda", "cuda:1"
    page_size: int = defaults.PAGE_SIZE  # tokens, 1 to 32
    # gives the number of pages where `num_pages` is None; "auto": what the loaded model leaves on the device
    kv_memory_bytes: int | Literal["auto"] = defaults.KV_MEMORY_GIB << 30
    num_pages: int | None = None
    num_embeds: int | None = None  # None: as many as tokens fit the pages, at most defaults.NUM_EMBEDS
    num_slots: int = defaults.NUM_SLOTS
    max_batch_tokens: int = defaults.MAX_BATCH_TOKENS
    max_batch_commands: int = defaults.MAX_BATCH_COMMANDS
    top_k_limit: int = 256
    host_kv_bytes: int = 0  # of host memory, for the pages of suspended programs
    logprobs_limit: int = defaults.LOGPROBS_LIMIT
    batch_invariant: bool = False
    attention: str = "auto"  # or one of `attention_choice.NAMES`
    kernels: str = "auto"  # "c", "torch" or "auto": C where it is built and helps
    threads: int | None = 1  # torch's threads on the CPU; None: leave them
    graphs: str = "auto"  # "on", "off", or "auto": on CUDA devices, where attention can be captured
    graph_buckets: str = ""  # rows of the graphs, separated by commas; "": the usual ones
    adapters: Mapping[str, Path] = field(default_factory=dict)  # directories of LoRA adapters, by name
    live_adapters: bool = False  # adapters come and go instead


def load_engine(
    path: Path,
    options: EngineOptions | None = None,
    *,
    progress: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> TorchEngine:
    """Load a checkpoint and allocate its pools.

    Args:
        path: the checkpoint's directory.
        options: how to set the engine up.
        progress: called with one line about each long part, for a person who waits.
        settings: fields of `EngineOptions` that replace those of `options`.

    Raises:
        CheckpointMissing: no such directory, or files are missing from it.
        CheckpointBroken: files can't be read or don't belong together, or weights are quantised.
        UnknownFamily: the model's family is not supported.
        OutOfDeviceMemory: the device has no room for weights and pools.
        InvalidConfig: there is no such device, or it can't attend as `attention` says.
        AdapterRefused: an adapter can't be read, doesn't fit the model, or isn't served.
    """
    options = replace(options or EngineOptions(), **settings)
    if not 1 <= options.page_size <= 32:
        raise ValueError(f"page_size {options.page_size} is not within 1 to 32")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    check_device(options.device)
    use_device(options.device)
    rows = graph_choice.buckets(options.graphs, options.device, options.graph_buckets, options.max_batch_commands)
    path = Path(path)
    config = read_config(path)
    texts = _texts(path, config)
    adapters = read_adapters(options.adapters, config) if options.adapters or options.live_adapters else None
    options = replace(options, dtype=resolve_dtype(options.dtype, config))
    dtype = DTYPES[options.dtype]
    progress(f"loading model {path.name}")
    reader = WeightReader(path, config, dtype)
    decoder: Decoder | None = None
    if options.kv_memory_bytes == "auto" and options.num_pages is None:
        weights = sum(file.stat().st_size for file in weight_files(path))
        with _out_of_memory(options.device, weights, free_bytes(options.device)):
            # first: what the weights leave is measured
            decoder = make_decoder(config, options, reader, dtype, adapters)
        options = replace(options, kv_memory_bytes=_measured(config, options, rows, decoder))
    sizes = pool_sizes(config, options)
    held = pool_bytes(sizes, config, dtype.itemsize) + _held_beside(config, options, rows)
    free = checked_room(options.device, held)  # before the weights are loaded, which takes long
    with _out_of_memory(options.device, held, free):
        decoder = decoder or make_decoder(config, options, reader, dtype, adapters)
        later = _held_by_attention(config, options, rows, decoder)
        if later:
            checked_room(options.device, held + later)  # beside the weights and attention's workspace
        pools = Pools(sizes, config, dtype, options.device)
        sums = sampler_choice.log_sums_for(decoder, batch_invariant=options.batch_invariant)
        decoder = graph_choice.with_graphs(
            decoder, pools, rows, must=options.graphs == "on", progress=progress, log_sums=sums
        )
    spec = engine_spec(path, config, options, sizes, texts)
    spec = with_adapters(spec, [adapter.spec for adapter in adapters or ()], live=options.live_adapters)
    if not texts.tokenizer_json:
        file = path / TOKENIZER
        log.warning("%s: no such file: programs can use tokens only, no text and no chat template", file)
    grammar = optional.load(texts.tokenizer_json, spec.vocab_size, spec.stop_tokens)
    if grammar is not None:
        spec = replace(spec, traits=(*spec.traits, optional.TRAIT))
    host = _host_pages(pools, options.host_kv_bytes // page_bytes(config, sizes.page_size, dtype.itemsize))
    if host is not None:
        spec = replace(spec, host_pages=host.count, host_page_ns=host.measure())
    takes = decoder.adapters if options.live_adapters and isinstance(decoder, TorchDecoder) else None
    loader = None if takes is None else LoraLoader(config, takes)
    sampler = sampler_choice.make(options.device, options.kernels, sums)
    return TorchEngine(spec, decoder, pools, sampler, texts.tokenizer_json, grammar, host, loader)


def _texts(path: Path, config: ModelConfig) -> Texts:
    """Read a model's texts. End tokens that its vocabulary lacks are left out."""
    texts = read_texts(path, config)
    known = tuple(t for t in texts.stop_tokens if 0 <= t < config.vocab)
    if known != texts.stop_tokens:
        log.warning(
            "%s: some of the end tokens %s are not in its vocabulary of %d", path, texts.stop_tokens, config.vocab
        )
    return replace(texts, stop_tokens=known)


def _host_pages(pools: Pools, count: int) -> HostPages | None:
    """Reserve host memory for suspended programs' pages; None if there is to be none.

    Raises:
        OutOfDeviceMemory: the host has less.
    """
    if not count:
        return None
    asked = count * pools.kv[:, :, 0].nbytes
    with _out_of_memory("cpu", asked, free_bytes("cpu")):
        if asked > free_bytes("cpu"):
            raise MemoryError
        return HostPages(pools, count)


@contextlib.contextmanager
def _out_of_memory(device: str, asked: int, free: int) -> Iterator[None]:
    """Turn a failed allocation into OutOfDeviceMemory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "alloc" not in str(error):
            raise
        raise OutOfDeviceMemory(device=device, asked_bytes=asked, free_bytes=free) from error


def _measured(config: ModelConfig, options: EngineOptions, rows: tuple[int, ...], decoder: Decoder) -> int:
    """Return the bytes for KV pages that the loaded weights leave on the device."""
    free, item = free_bytes(options.device), DTYPES[options.dtype].itemsize
    embeds = options.num_embeds if options.num_embeds is not None else defaults.NUM_EMBEDS
    scratch = options.max_batch_tokens + options.max_batch_commands * options.page_size  # tokens of scratch pages
    pools = embeds * config.dim * item + scratch * page_bytes(config, 1, item)
    tokens, commands = options.max_batch_tokens, options.max_batch_commands
    batch = batch_bytes(config, tokens=tokens, commands=commands, element_bytes=item, chosen=max(rows, default=0))
    held = pools + _held_beside(config, options, rows) + _held_by_attention(config, options, rows, decoder)
    found = kv_bytes(free, pools=held, batch=batch, device=options.device)
    log.info("KV pages take %d of the %d bytes that are free on %s", found, free, options.device)
    return found


def _held_beside(config: ModelConfig, options: EngineOptions, rows: tuple[int, ...]) -> int:
    """Return the bytes of the device that graphs take, and the buffers through which pages go to the host."""
    item = DTYPES[options.dtype].itemsize
    one = page_bytes(config, options.page_size, item)
    swaps = buffer_bytes(options.host_kv_bytes // one, one) if options.device.startswith("cuda") else 0
    if not rows:
        return swaps
    return swaps + graph_bytes(config, rows=rows[-1], page_size=options.page_size, element_bytes=item)


def _held_by_attention(config: ModelConfig, options: EngineOptions, rows: tuple[int, ...], decoder: Decoder) -> int:
    """Return the bytes that attention takes after it is made, beside its part of the graphs' pool."""
    if not isinstance(decoder, TorchDecoder) or not isinstance(decoder.attention, TakesLater):
        return 0
    pages = rows[-1] * table_width(config.max_position, options.page_size, rows[-1]) if rows else 0
    return decoder.attention.later_bytes(pages)


def engine_from_settings(settings: WorkerSettings, progress: Callable[[str], None]) -> TorchEngine:
    """Load the engine that a worker's settings ask for; errors as `load_engine`."""
    assert settings.model is not None, "the caller has checked"
    if not settings.device.startswith("cuda"):  # `load_engine` itself also runs what stands in for CUDA in tests
        _check_attention(settings.attention, settings.device, batch_invariant=settings.batch_invariant)
    return load_engine(
        settings.model,
        EngineOptions(
            name=settings.model_name or None,
            dtype=settings.dtype,
            device=settings.device,
            page_size=settings.page_size,
            kv_memory_bytes=settings.kv_memory_bytes,
            host_kv_bytes=settings.host_kv_bytes,
            num_embeds=settings.num_embeds,
            num_slots=settings.num_slots,
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_commands=settings.max_batch_commands,
            logprobs_limit=settings.logprobs_limit,
            batch_invariant=settings.batch_invariant,
            attention=settings.attention,
            threads=settings.threads,
            graphs=settings.graphs,
            graph_buckets=settings.graph_buckets,
            adapters=named_directories(settings.adapters),
            live_adapters=settings.adapters_file is not None,
        ),
        progress=progress,
    )


def pool_sizes(config: ModelConfig, options: EngineOptions) -> PoolSizes:
    """Return the sizes of the pools that the options ask for.

    Raises:
        OutOfDeviceMemory: the memory for pages is less than one page.
    """
    one = page_bytes(config, options.page_size, DTYPES[options.dtype].itemsize)
    num_pages = options.num_pages
    if num_pages is None:
        assert options.kv_memory_bytes != "auto", "the caller has measured"
        num_pages = options.kv_memory_bytes // one
    if num_pages < 1:
        raise OutOfDeviceMemory(device=options.device, asked_bytes=one, free_bytes=options.kv_memory_bytes)
    tokens = num_pages * options.page_size
    return PoolSizes(
        page_size=options.page_size,
        num_pages=num_pages,
        num_embeds=options.num_embeds
        if options.num_embeds is not None
        else min(defaults.NUM_EMBEDS, max(1024, tokens)),
        num_slots=options.num_slots,
        scratch_tokens=options.max_batch_tokens,
        scratch_commands=options.max_batch_commands,
    )


def make_decoder(
    config: ModelConfig,
    options: EngineOptions,
    reader: WeightReader,
    dtype: torch.dtype,
    adapters: Sequence[Adapter] | None = None,
) -> Decoder:
    """Make the C decoder where it can run and wins (one thread, bf16), else the one in torch; log why it can't."""
    if options.kernels not in {"auto", "c", "torch"}:
        raise ValueError(f"kernels {options.kernels!r} is none of auto, c, torch")
    chosen_by_hand = options.kernels == "torch" or options.attention != "auto"
    threads = 1 if options.kernels == "c" else torch.get_num_threads()
    reasons = slow_path_reasons(
        options.device,
        options.dtype,
        threads,
        config.group,
        Machine.this(),
        other=unserved(config, adapters=adapters is not None),
    )
    if not chosen_by_hand:
        if supports(config, options.device, dtype) and not reasons:
            return CDecoder(config, reader)
        if reasons:
            log.warning("decoding does not take the fast path: %s", "; ".join(reasons))
    name = options.attention
    if name == "auto":
        choice = attention_choice.choose(
            options.device,
            batch_invariant=options.batch_invariant,
            c_kernel=options.kernels != "torch" and available() and config.group <= MAX_GROUP,
            triton_lacks=attention_choice.triton_lacks(),
            flashinfer_lacks=_flashinfer_lacks(config, options),
        )
        log.info("attention is %s: %s", choice.name, choice.why)
        name = choice.name
    elif options.device.startswith("cuda"):
        lacks = _flashinfer_lacks(config, options) if name == "flashinfer" else ""
        _check_attention(name, options.device, batch_invariant=options.batch_invariant, flashinfer_lacks=lacks)
    attention, store = attention_choice.make(
        name,
        config,
        options.device,
        batch_invariant=options.batch_invariant,
        dtype=dtype,
        page_size=options.page_size,
    )
    return TorchDecoder(
        config,
        reader,
        attention,
        device=options.device,
        batch_invariant=options.batch_invariant,
        kv_store=store,
        adapters=adapters,
    )


def _check_attention(name: str, device: str, *, batch_invariant: bool, flashinfer_lacks: str = "") -> None:
    """Refuse a path of attention that can't be taken.

    Raises:
        InvalidConfig: with the reason.
    """
    why_not = attention_choice.obstacle(
        name,
        device,
        batch_invariant=batch_invariant,
        triton_lacks=attention_choice.triton_lacks(),
        flashinfer_lacks=flashinfer_lacks,
    )
    if why_not:
        raise InvalidConfig(role="worker", detail=f"attention={name}: {why_not}: use attention=auto")


def _flashinfer_lacks(config: ModelConfig, options: EngineOptions) -> str:
    """Return what keeps FlashInfer from serving this model on this device, or ""."""
    if not options.device.startswith("cuda"):
        return f"FlashInfer doesn't serve {options.device}"
    if options.batch_invariant:
        return "FlashInfer's tiles depend on the batch"
    capability = ".".join(map(str, torch.cuda.get_device_capability(options.device)))
    needs = attention_choice.flashinfer_needs(config, options.dtype)
    return flashinfer_modules.lacks(needs, capability) or flashinfer_modules.load(needs)


def engine_spec(path: Path, config: ModelConfig, options: EngineOptions, sizes: PoolSizes, texts: Texts) -> EngineSpec:
    """Make the facts that the engine sends in its Hello."""
    card = read_card(path)
    spec = EngineSpec(
        model=options.name or path.resolve().name,
        model_digest=digest(path),
        family=config.family,
        dtype=options.dtype,
        device=options.device,
        page_size=sizes.page_size,
        num_pages=sizes.num_pages,
        num_embeds=sizes.num_embeds,
        num_slots=sizes.num_slots,
        vocab_size=config.vocab,
        max_position=config.max_position,
        max_batch_tokens=options.max_batch_tokens,
        max_batch_commands=options.max_batch_commands,
        top_k_limit=min(options.top_k_limit, config.vocab),
        logprobs_limit=min(options.logprobs_limit, config.vocab),
        kv_bytes_per_token=config.kv_bytes_per_value * DTYPES[options.dtype].itemsize,
        tokenizer_digest=hashlib.sha256(texts.tokenizer_json).hexdigest() if texts.tokenizer_json else "",
        stop_tokens=texts.stop_tokens,
        bos_token=config.bos_token,
        chat_template=texts.chat_template,
        chat_bos=texts.bos,
        chat_eos=texts.eos,
        batch_invariant=options.batch_invariant,
        description=card.description,
        version=card.version,
        license=card.license,
    )
    return spec if texts.tokenizer_json else replace(spec, traits=tuple(t for t in spec.traits if t != "Tokenize"))
