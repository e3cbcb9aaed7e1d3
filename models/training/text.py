"""From text to token ids: the byte-level BPE tokenizer with single digits, and the chat template."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from models.training.tasks import ASSISTANT, BEGIN, END, SYSTEM, TOOL, USER

PAD = "<|pad|>"
SPECIAL_TOKENS = (PAD, BEGIN, END, SYSTEM, USER, ASSISTANT, TOOL)
PAD_ID, BEGIN_ID, END_ID = 0, 1, 2
VOCAB_SIZE = 768

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for tool in tools or [] %}"
    "{% set function = tool['function'] or tool %}"
    "{{ '<|system|>Tools: ' if loop.first else '; ' }}"
    "{{ function['name'] + '(' + ((function['parameters'] or {})['properties'] or {}) | join(', ') + ')' }}"
    "{% endfor %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% set function = call['function'] or call %}"
    "{% set arguments = function['arguments'] or {} %}"
    "{{ '' if loop.first else '\\n' }}"
    "{{ '{\"name\": ' + function['name'] | tojson + ', \"arguments\": ' }}"
    "{{ (arguments if arguments is string else arguments | tojson) + '}' }}"
    "{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Writes tools as `toolbox.header` does, and an assistant's `tool_calls` as `tasks.tool_call` does, one on a line."""


def train_tokenizer(corpus: Iterable[str]) -> Tokenizer:
    """Learn a vocabulary of `VOCAB_SIZE`. Every digit is its own token, so that columns of numbers line up."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


def for_transformers(tokenizer: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    """The same tokenizer with the special tokens' roles and the chat template, ready for `save_pretrained`."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
