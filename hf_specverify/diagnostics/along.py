"""The logits of a model before every token of a text that is there already (teacher forcing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..decoding.probe import make_runner
from ..decoding.timing import Stopwatch
from ..drafting.vocabulary import fit_vocabulary, vocabulary_size

# Numbers that one piece of logits may have: a few hundred positions of a small vocabulary, a hundred of a large one.
FORWARD_ELEMENTS = 1 << 24


def logits_along(model: Any, prompt: Tensor, new: Tensor, vocabulary: int) -> Iterator[tuple[int, Tensor]]:
    """The model's logits before every new token, by one forward over the text, or several where it is long.

    Args:
        model: a causal language model; the ids are moved to its device.
        prompt: (P,) ids, P ≥ 1.
        new: (n,) ids.
        vocabulary: V, of the target; other logits are cut off, missing ones are minus infinity.

    Yields:
        The number of the first new token of a piece, and (m, V) logits in the model's dtype.
    """
    text = torch.cat([prompt, new])[None].clamp(max=vocabulary_size(model) - 1)
    begin = len(prompt) - 1
    valid = torch.ones(1, len(prompt), dtype=torch.bool, device=text.device)
    runner = make_runner(model, Stopwatch(), "target")
    runner.prefill(text[:, :begin], valid[:, :begin], valid, None)
    step = max(1, FORWARD_ELEMENTS // vocabulary)
    for start in range(0, len(new), step):
        count = min(step, len(new) - start)
        block = text[:, begin + start : begin + start + count]
        yield start, fit_vocabulary(runner.forward(block, [count]).logits[0], vocabulary)
