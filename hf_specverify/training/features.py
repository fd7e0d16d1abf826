"""What the target says and thinks at every token of the texts: computed once, in passes of bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..decoding.traits import input_device
from .store import Store
from .texts import Advance, unpack

PASS_TOKENS = 2048  # tokens of one forward, filler included; the logits of all of them are in memory


def write_features(
    target: Any, layers: Sequence[int], kept: int, texts: Store, features: Store, count: int, advance: Advance
) -> None:
    """Read each file of texts with the target, and write a file of the same number; those that are there are left.

    Of text i a file has `ids.i` (N,), `states.i` (N, features) in 16 bit, `tokens.i` and `chances.i` (N, K), the
    likeliest next tokens and their probabilities, and `begin.i`, where its answer begins.

    Args:
        target: the target.
        layers: which of its hidden states.
        kept: K.
        texts: the files of texts.
        features: gets the files.
        count: files.
        advance: called after every file.
    """
    for number in range(count):
        if not features.has(number):
            tensors: dict[str, Tensor] = {}
            rows = unpack(texts.load(number))
            for places in _passes([len(ids) for ids, _ in rows]):
                for place, found in zip(places, _read(target, layers, kept, [rows[i][0] for i in places]), strict=True):
                    tensors |= {f"{name}.{place}": tensor for name, tensor in found.items()}
                    tensors[f"begin.{place}"] = torch.tensor(rows[place][1])
            features.save(number, tensors)
        advance()


def _passes(lengths: list[int]) -> list[list[int]]:
    """Texts of like length, together at most `PASS_TOKENS` long with filler."""
    passes: list[list[int]] = []
    longest = 0
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not passes or (len(passes[-1]) + 1) * longest > PASS_TOKENS:
            passes.append([])
            longest = lengths[place]
        passes[-1].append(place)
    return passes


def _read(target: Any, layers: Sequence[int], kept: int, texts: list[Tensor]) -> list[dict[str, Tensor]]:
    """One forward over texts, filled up on the right, which no token before it can see."""
    device = input_device(target)
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).to(device)
    lengths = torch.tensor([len(text) for text in texts], device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
    with torch.no_grad():
        output = target(
            input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False, return_dict=True
        )
    if output.hidden_states is None:
        raise ValueError(f"target: {type(target).__name__} gives no hidden states; allowed are models that do")
    states = torch.cat([output.hidden_states[layer].to(device) for layer in layers], dim=-1)
    found = []
    for row, text in enumerate(texts):
        size = len(text)
        law = output.logits[row, :size].float().softmax(dim=-1)
        best = law.topk(min(kept, law.shape[-1]), dim=-1)
        found.append(
            {
                "ids": text,
                "states": states[row, :size].to("cpu", torch.bfloat16),
                "tokens": best.indices.to("cpu", torch.int32),
                "chances": best.values.to("cpu", torch.bfloat16),
            }
        )
    return found
