"""The calls that the paper counts: 18 for the model's execution and 24 of the runtime (section 4, Table 1)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tartlet_common.abi import Op


class PaperCall(NamedTuple):
    """A call of the paper.

    Attributes:
        name: the paper's.
        trait: which declares it.
        takes: its arguments with their shapes, as the Python SDK has them.
        gives: its result.
        op: the operation that answers it; None if no program can call it yet.
        sdk: the name in the Python SDK, if it is another.
    """

    name: str
    trait: str
    takes: str
    gives: str
    op: Op | None
    sdk: str = ""


EXECUTION: Final = (
    PaperCall("get_kv_page_size", "Allocate", "q", "int, tokens", Op.GET_MODEL),
    PaperCall("get_all_exported_kvpages", "Allocate", "q", "[n] names", Op.GET_ALL_EXPORTED_KVPAGES),
    PaperCall("alloc_kvpage", "Allocate", "q, n", "[n] pages", Op.ALLOC_KVPAGE),
    PaperCall("dealloc_kvpage", "Allocate", "q, [n] pages", "", Op.DEALLOC_KVPAGE),
    PaperCall("alloc_emb", "Allocate", "q, n", "[n] embeds", Op.ALLOC_EMB),
    PaperCall("dealloc_emb", "Allocate", "q, [n] embeds", "", Op.DEALLOC_EMB),
    PaperCall("copy_kvpage", "Allocate", "q, src, dst, src_offset, dst_offset, size", "", Op.COPY_KVPAGE),
    PaperCall("export_kvpage", "Allocate", "q, table, name", "tokens, version, digest", Op.EXPORT_KVPAGE),
    PaperCall("unexport_kvpage", "Allocate", "q, name", "", Op.UNEXPORT_KVPAGE),
    PaperCall("import_kvpage", "Allocate", "q, name", "table, [n] tokens, version", Op.IMPORT_KVPAGE),
    PaperCall("get_all_adapters", "Adapter", "model", "[n] adapters", Op.GET_ALL_ADAPTERS),
    PaperCall("forward", "Forward", "q, ikv [p], iemb [t], okv [w], oemb [o], mask [t][p x page + t]", "", Op.FORWARD),
    PaperCall("forward_with_adapter", "Adapter", "q, adapter, as forward", "", Op.FORWARD),
    PaperCall("mask_kvpage", "Forward", "q, page, [page] bool", "", Op.MASK_KVPAGE),
    PaperCall("embed_txt", "InputText", "q, [t] tokens, [t] positions, [t] embeds", "", Op.EMBED_TXT),
    PaperCall("embed_img", "InputImage", "q, blob, embeds", "", None),
    PaperCall("num_embs_needed", "InputImage", "model, width, height", "int", None),
    PaperCall("get_next_dist", "OutputText", "q, embed, top_k", "[k] tokens, [k] f32", Op.GET_NEXT_DIST),
)
RUNTIME: Final = (
    PaperCall("get_version", "Core", "", "str", Op.GET_VERSION),
    PaperCall("get_instance_id", "Core", "", "str", Op.GET_INSTANCE_ID),
    PaperCall("get_arg", "Core", "", "[n] str", Op.GET_ARG),
    PaperCall("get_model", "Core", "name", "model", Op.GET_MODEL),
    PaperCall("available_models", "Core", "", "[n] names", Op.AVAILABLE_MODELS),
    PaperCall("available_models_with_traits", "Core", "[n] traits", "[n] names", Op.AVAILABLE_MODELS),
    PaperCall("send", "Core", "message", "", Op.SEND),
    PaperCall("receive", "Core", "", "message", Op.RECEIVE),
    PaperCall("broadcast", "Core", "topic, message", "int, subscriptions", Op.BROADCAST),
    PaperCall("subscribe", "Core", "topic", "messages", Op.SUBSCRIBE),
    PaperCall("store_get", "Core", "key", "value or None", Op.STORE_GET),
    PaperCall("store_set", "Core", "key, value", "bool", Op.STORE_SET),
    PaperCall("store_delete", "Core", "key", "bool", Op.STORE_DELETE),
    PaperCall("store_exists", "Core", "key", "bool", Op.STORE_EXISTS),
    PaperCall("store_list_keys", "Core", "prefix", "[n] keys", Op.STORE_LIST_KEYS),
    PaperCall("name", "Model", "model", "str", Op.GET_MODEL, "Model.name"),
    PaperCall("available_traits", "Model", "model", "[n] traits", Op.GET_MODEL),
    PaperCall("description", "Model", "model", "str", Op.GET_MODEL, "Model.description"),
    PaperCall("version", "Model", "model", "str", Op.GET_MODEL, "Model.version"),
    PaperCall("license", "Model", "model", "str", Op.GET_MODEL, "Model.license"),
    PaperCall("prompt_template", "Model", "model", "str", Op.PROMPT_TEMPLATE),
    PaperCall("create_queue", "Model", "model", "queue", Op.CREATE_QUEUE),
    PaperCall("synchronize", "Queue", "q", "", Op.SYNCHRONIZE),
    PaperCall("set_queue_priority", "Queue", "q, priority", "", Op.SET_QUEUE_PRIORITY),
)
BESIDE: Final = (
    PaperCall("tokenize", "Tokenize", "text", "[t] tokens", Op.TOKENIZE),
    PaperCall("detokenize", "Tokenize", "[t] tokens", "str", Op.DETOKENIZE),
    PaperCall("get_vocabs", "Tokenize", "model, first, count", "[n] bytes", Op.GET_VOCABS),
    PaperCall("http_get", "HTTP", "url, headers", "reply", Op.HTTP_REQUEST),
    PaperCall("http_post", "HTTP", "url, body or json, headers", "reply", Op.HTTP_REQUEST),
)
"""Calls of Table 1 that the paper's count of 42 leaves out."""
PAPER_CALLS: Final = (*EXECUTION, *RUNTIME, *BESIDE)

assert (len(EXECUTION), len(RUNTIME)) == (18, 24)
