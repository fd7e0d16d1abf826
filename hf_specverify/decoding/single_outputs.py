"""Outputs of rows that ran alone, put together as the left-padded batch would have given them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .runner import ForwardOutput


def fill(tensor: Tensor, length: int, before: int) -> Tensor:
    """Put `tensor` (n, ...) behind `before` zeros and fill up with zeros to `length`."""
    padded = tensor.new_zeros(length, *tensor.shape[1:])
    padded[before : before + len(tensor)] = tensor
    return padded


def place(weights: Tensor, queries: int, first_query: int, slots: int, end: int) -> Tensor:
    """(heads, n, m) attention weights over the m slots before `end`, inside zeros of (heads, queries, slots)."""
    out = weights.new_zeros(weights.shape[0], queries, slots)
    out[:, first_query : first_query + weights.shape[1], end - weights.shape[2] : end] = weights
    return out


def block_extras(blocks: list[Any], lengths: list[int], width: int) -> Any:
    """Hidden states (B, width, H) and attentions (B, heads, width, slots) of one block, by layer, or None."""
    hidden = attentions = None
    if _has(blocks, "hidden_states"):
        hidden = tuple(
            torch.stack([fill(block.hidden_states[layer][0], width, 0) for block in blocks])
            for layer in range(len(blocks[0].hidden_states))
        )
    if _has(blocks, "attentions"):
        pairs = list(zip(blocks, lengths, strict=True))
        attentions = tuple(
            torch.stack([place(block.attentions[layer][0], width, 0, max(lengths), end) for block, end in pairs])
            for layer in range(len(blocks[0].attentions))
        )
    return hidden, attentions


def assemble_prefill(per_row: list[list[Any]], padding: list[int], width: int) -> ForwardOutput:
    """The prefill outputs of all rows, chunk by chunk, as one left-padded output (logits of the last token)."""
    chunks = [chunk for row in per_row for chunk in row]
    hidden = attentions = None
    if _has(chunks, "hidden_states"):
        like, layers = chunks[0].hidden_states[0][0], range(len(chunks[0].hidden_states))
        hidden = tuple(torch.stack([_hidden(row, layer, width, like) for row in per_row]) for layer in layers)
    if _has(chunks, "attentions"):
        like, layers = chunks[0].attentions[0][0], range(len(chunks[0].attentions))
        pairs = list(zip(per_row, padding, strict=True))
        attentions = tuple(
            torch.stack([_attention(row, layer, pad, width, like) for row, pad in pairs]) for layer in layers
        )
    return ForwardOutput(torch.cat([row[-1].logits[:, -1:] for row in per_row if row]), hidden, attentions)


def _has(outputs: list[Any], name: str) -> bool:
    value = getattr(outputs[0], name, None) if outputs else None
    return value is not None and value[0] is not None


def _hidden(chunks: list[Any], layer: int, width: int, like: Tensor) -> Tensor:
    states = torch.cat([like[:0], *(chunk.hidden_states[layer][0] for chunk in chunks)])
    return fill(states, width, width - len(states))


def _attention(chunks: list[Any], layer: int, padding: int, width: int, like: Tensor) -> Tensor:
    out, end = like.new_zeros(like.shape[0], width, width), padding
    for chunk in chunks:
        weights = chunk.attentions[layer][0]
        start, end = end, end + weights.shape[1]
        out += place(weights, width, start, width, end)
    return out
