"""A generated row, laid out to be read again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..decoding.processors import Block
from .steps import RowWork


@dataclass(frozen=True, eq=False)
class Text:
    """One row of a batch with what was generated for it.

    Attributes:
        row: its number in the batch.
        prompt: (P,) ids without padding.
        new: (n,) generated ids, n ≥ 1.
        batch: (B, T + N) the whole left-padded batch with its new tokens, as processors see it.
        width: T, the columns of the padded prompts.
        work: how the row came about; empty where it was not drafted.
    """

    row: int
    prompt: Tensor
    new: Tensor
    batch: Tensor
    width: int
    work: RowWork = field(default_factory=RowWork)

    def block(self, start: int, stop: int) -> Block:
        """The positions before new tokens start … stop - 1, for processors."""
        return Block(self.batch, [self.row], [self.width + start], [stop - start])


def lay_out(inputs: Tensor, mask: Tensor | None, new: list[list[int]], work: list[RowWork] | None = None) -> list[Text]:
    """The rows of a batch.

    Args:
        inputs: (B, T) left-padded prompts.
        mask: (B, T), 0 for padding; None: there is none.
        new: new tokens by row.
        work: by row, of a speculative call.
    """
    longest = max(map(len, new))
    batch = torch.nn.functional.pad(inputs, (0, longest))
    width, texts = inputs.shape[1], []
    for row, tokens in enumerate(new):
        ids = torch.tensor(tokens, dtype=torch.long, device=inputs.device)
        batch[row, width : width + len(tokens)] = ids
        padding = 0 if mask is None else int((mask[row] == 0).sum())
        texts.append(Text(row, inputs[row, padding:], ids, batch, width, work[row] if work else RowWork()))
    return texts
