"""The prompts of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..benchmark.prompts import chat_encoder, encode_chunk
from ..decoding.traits import input_device
from .arms import Comparison
from .tasks import Task


def as_batches(
    prompts: Sequence[str] | Iterable[Mapping[str, Tensor]], tokenizer: Any, batch_size: int, comparison: Comparison
) -> list[Mapping[str, Tensor]]:
    """The inputs of `generate`: as they were given, or from texts, `batch_size` at a time.

    Raises:
        TypeError: for a mixture of both, or texts without a tokenizer.
        ValueError: for no prompt at all, or a batch size below 1.
    """
    given = [] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise ValueError("prompts holds nothing; allowed: a sequence of at least one prompt")
    texts = [item for item in given if isinstance(item, str)]
    batches = [item for item in given if isinstance(item, Mapping)]
    if len(batches) == len(given):
        return batches
    if len(texts) < len(given) or tokenizer is None:
        raise TypeError("prompts: allowed are texts, all of them, with tokenizer=, or inputs of generate, all of them")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r}: allowed are integers from 1")
    pad = comparison.pad_token
    pad = min(comparison.end_tokens, default=0) if pad is None else pad
    device, encode = input_device(comparison.target), chat_encoder(tokenizer)
    starts = range(0, len(texts), batch_size)
    return [encode_chunk(encode, texts[start : start + batch_size], pad, device) for start in starts]


def check_arguments(
    tasks: Sequence[Task | None] | None,
    tokenizer: Any,
    repeats: int,
    max_new_tokens: int,
    batches: Sequence[Mapping[str, Tensor]],
) -> None:
    """Refuse numbers that are not positive, and tasks that do not fit the prompts.

    Raises:
        ValueError: naming the argument.
    """
    for name, value in (("repeats", repeats), ("max_new_tokens", max_new_tokens)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}: allowed are integers from 1")
    if tasks is None:
        return
    prompts = sum(len(inputs["input_ids"]) for inputs in batches)
    if len(tasks) != prompts:
        raise ValueError(f"tasks has {len(tasks)} entries for {prompts} prompts; allowed: one (or None) for each")
    if tokenizer is None:
        raise ValueError("tokenizer=None: tasks are scored by the text; allowed is the target's tokenizer")
