"""Where two greedy outputs part, and how close the call was.

In 16 bit a block of tokens and a single token round differently in the last bits, so plain and speculative decoding can
choose differently between tokens whose logits are (almost) equal. A gap of a few units in the last place is such a tie;
a large one is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Divergence:
    """The first place where a row of two outputs differs.

    Attributes:
        row: of the batch.
        position: index of the first differing token, counted from the end of the prompt.
        tokens: the token of the first output and of the second.
        logits: the model's logits of these two tokens after the common prefix, by one plain forward.
    """

    row: int
    position: int
    tokens: tuple[int, int]
    logits: tuple[float, float]

    @property
    def gap(self) -> float:
        """How much larger the logit of the first output's token is."""
        return self.logits[0] - self.logits[1]


@torch.no_grad()
def first_divergence(model: Any, first: Tensor, second: Tensor, attention_mask: Tensor) -> list[Divergence | None]:
    """Compare two outputs of `generate` for the same prompts, row by row.

    Args:
        model: the target.
        first: (B, T) sequences, prompt included.
        second: (B, T') sequences.
        attention_mask: (B, P) the mask of the left-padded prompts.

    Returns:
        One entry per row, None where the rows are equal as far as both go.

    Raises:
        ValueError: if the batches differ in size.
    """
    if not len(first) == len(second) == len(attention_mask):
        raise ValueError(
            f"first, second and attention_mask have {len(first)}, {len(second)} and {len(attention_mask)} rows; "
            "allowed: the same number"
        )
    start = attention_mask.shape[1]
    width = min(first.shape[1], second.shape[1])
    return [
        _row(model, row, first[row, :width], second[row, :width], int((attention_mask[row] == 0).sum()), start)
        for row in range(len(first))
    ]


def _row(model: Any, row: int, first: Tensor, second: Tensor, padding: int, start: int) -> Divergence | None:
    different = torch.nonzero(first[start:] != second[start:]).flatten()
    if not len(different):
        return None
    place = start + int(different[0])
    logits = model(input_ids=first[None, padding:place], use_cache=False).logits[0, -1].float()
    tokens = int(first[place]), int(second[place])
    return Divergence(row, place - start, tokens, (float(logits[tokens[0]]), float(logits[tokens[1]])))
