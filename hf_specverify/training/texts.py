"""What a head learns from: answers that the target writes, or texts as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..benchmark.prompts import chat_encoder, encode_chunk
from ..benchmark.runs import eos_token_ids, pad_token_id
from ..decoding.traits import input_device
from .settings import HeadTraining
from .store import Store

Advance = Callable[[], None]
# A place that no chat template has by itself.
_HERE = "THE-USER-SAYS-THIS"
_LONGEST_PROMPT, _SHORTEST = 128, 8  # tokens and letters of an instruction that the target writes


def write_answers(
    target: Any, tokenizer: Any, prompts: Sequence[str], store: Store, settings: HeadTraining, advance: Advance
) -> None:
    """Let the target answer prompts, a file per batch; batches that are there are left alone.

    Args:
        target: the target.
        tokenizer: its tokenizer; prompts become the user's turn of its chat template, if it has one.
        prompts: texts.
        store: gets the files.
        settings: lengths, temperatures, seed.
        advance: called after every batch.
    """
    encode, pad = chat_encoder(tokenizer), pad_token_id(target, tokenizer)
    size = settings.generation_batch
    for number, begin in enumerate(range(0, len(prompts), size)):
        if not store.has(number):
            inputs = encode_chunk(encode, prompts[begin : begin + size], pad, input_device(target))
            temperature = settings.temperatures[number % len(settings.temperatures)]
            output = _generate(target, inputs, temperature, settings.max_new_tokens, settings.seed + number, pad)
            store.save(number, pack(_cut(inputs, output, eos_token_ids(target), settings.max_length)))
        advance()


def write_texts(tokenizer: Any, texts: Sequence[str], store: Store, settings: HeadTraining, first: int) -> int:
    """Cut given texts into pieces of `max_length` tokens, and write them to one file, of the number `first`.

    Returns:
        How many files: 1, or 0 without texts.
    """
    pieces: list[tuple[Tensor, int]] = []
    for text in texts:
        ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"], dtype=torch.long)
        pieces += [(piece, 0) for piece in torch.split(ids, settings.max_length) if len(piece) > settings.unroll + 2]
    if pieces and not store.has(first):
        store.save(first, pack(pieces))
    return int(bool(pieces))


def own_prompts(target: Any, tokenizer: Any, count: int, settings: HeadTraining, advance: Advance) -> list[str]:
    """Instructions that the target writes itself, when its chat template stops where a user would speak (2406.08464).

    Args:
        target: the target.
        tokenizer: with a chat template.
        count: how many are tried; what is empty, not finished, or comes twice is left out.
        settings: batch and seed.
        advance: called after every batch.

    Raises:
        ValueError: if the tokenizer has no chat template that a user's turn can be cut out of.
    """
    before = _before_the_user(tokenizer)
    ids = tokenizer(before, add_special_tokens=False)["input_ids"]
    pad, device = pad_token_id(target, tokenizer), input_device(target)
    found, ends = dict[str, None](), eos_token_ids(target)
    for number, begin in enumerate(range(0, count, settings.generation_batch)):
        rows = min(settings.generation_batch, count - begin)
        inputs = {"input_ids": torch.tensor([ids] * rows, device=device)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        output = _generate(target, inputs, 1.0, _LONGEST_PROMPT, settings.seed + number, pad)
        for row in output[:, len(ids) :]:
            if ends and not ends & set(row.tolist()):
                continue  # cut off in the middle
            text = tokenizer.decode(row, skip_special_tokens=True).strip()
            if len(text) > _SHORTEST:
                found[text] = None
        advance()
    return list(found)


def _before_the_user(tokenizer: Any) -> str:
    if getattr(tokenizer, "chat_template", None):
        turns = [{"role": "user", "content": _HERE}]
        rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
        if _HERE in rendered:
            return str(rendered[: rendered.index(_HERE)])
    raise ValueError("own_prompts: the tokenizer has no chat template; allowed: prompts or texts")


def _generate(target: Any, inputs: dict[str, Tensor], temperature: float, length: int, seed: int, pad: int) -> Tensor:
    """Ids of a plain generation with random numbers of its own."""
    options: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    devices = [inputs["input_ids"].device] if inputs["input_ids"].device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), _neutral(target):
        torch.manual_seed(seed)
        ids: Tensor = target.generate(**inputs, max_new_tokens=length, pad_token_id=pad, **options)
    return ids


@contextmanager
def _neutral(target: Any) -> Iterator[None]:
    """The target's generation config without penalties and limits, restored afterwards."""
    from ..benchmark.runs import neutral_generation

    with neutral_generation([target], pad_token_id(target, None)):
        yield


def _cut(inputs: dict[str, Tensor], output: Tensor, ends: frozenset[int], longest: int) -> list[tuple[Tensor, int]]:
    """Each row without padding, up to its end of text, and how many tokens its prompt has."""
    width, found = inputs["input_ids"].shape[1], []
    for row, mask in zip(output.cpu(), inputs["attention_mask"].cpu(), strict=True):
        answer = row[width:].tolist()
        end = next((place + 1 for place, token in enumerate(answer) if token in ends), len(answer))
        padding = int((mask == 0).sum())
        ids = row[padding : width + end][:longest]
        if width - padding < len(ids):
            found.append((ids, width - padding))
    return found


def pack(rows: Sequence[tuple[Tensor, int]]) -> dict[str, Tensor]:
    """Texts of different length in three tensors: ids one after the other, lengths, and where answers begin."""
    return {
        "ids": torch.cat([ids for ids, _ in rows]) if rows else torch.zeros(0, dtype=torch.long),
        "lengths": torch.tensor([len(ids) for ids, _ in rows], dtype=torch.long),
        "begins": torch.tensor([begin for _, begin in rows], dtype=torch.long),
    }


def unpack(tensors: dict[str, Tensor]) -> list[tuple[Tensor, int]]:
    """What `pack` packed."""
    parts = torch.split(tensors["ids"], tensors["lengths"].tolist())
    return list(zip(parts, tensors["begins"].tolist(), strict=True))
