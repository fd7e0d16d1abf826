"""Toy targets and drafts that find the usual mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Context = tuple[int, ...]
Laws = Mapping[Context, Tensor]
"""A toy language model: the law (V,) float64 of the next token after each context."""


@dataclass(frozen=True, eq=False)
class Case:
    """A toy target and a toy draft.

    Attributes:
        name: what is special about it.
        length: L, the number of tokens drafted per block.
        p: the target's laws, for every context of 0 to L tokens.
        q: the draft's laws, for every context of 0 to L - 1 tokens.
        admitted: for some contexts, which tokens (V,) bool a schedule lets through to verification. A token that is
            not let through cuts the block at its place.
    """

    name: str
    length: int
    p: Laws
    q: Laws
    admitted: Mapping[Context, Tensor]


def cases(length: int, vocabulary_size: int, seed: int = 0) -> Iterator[Case]:
    """Yield cases that find the usual mistakes: ties, p = q, zeros, one-hot laws and cuts, over random tables."""
    generator = torch.Generator().manual_seed(seed)

    def table(law: Callable[[], Tensor]) -> dict[Context, Tensor]:
        return {context: law() for context in contexts(length, vocabulary_size)}

    def random() -> Tensor:
        return _normalised(torch.rand(vocabulary_size, generator=generator, dtype=torch.float64) ** 2 + 1e-3)

    def tied() -> Tensor:
        return _normalised(torch.randint(1, 4, (vocabulary_size,), generator=generator).double())

    def one_hot() -> Tensor:
        return torch.eye(vocabulary_size, dtype=torch.float64)[_index(vocabulary_size, generator)]

    def with_zeros() -> Tensor:
        kept = torch.rand(vocabulary_size, generator=generator) < 0.5
        return _normalised(random() * kept + 0.1 * one_hot())

    p, q = table(random), table(random)
    nearly = {context: _normalised(law.float().double()) for context, law in p.items()}
    admitted = _admitted_by_companion(q, table(random))
    last = {context: flags for context, flags in admitted.items() if len(context) == length - 1}
    yield Case("random", length, p, q, {})
    yield Case("ties", length, table(tied), table(tied), {})
    yield Case("p = q", length, p, p, {})
    yield Case("p = q to float32", length, p, nearly, {})
    yield Case("zeros", length, table(with_zeros), table(with_zeros), {})
    yield Case("one-hot q", length, p, table(one_hot), {})
    yield Case("one-hot p", length, table(one_hot), q, {})
    yield Case("cut at the last position", length, p, q, last)
    yield Case("cut at any position", length, p, q, admitted)


def contexts(length: int, vocabulary_size: int) -> Iterator[Context]:
    """Yield every tuple of 0 to `length` tokens."""
    for n in range(length + 1):
        yield from itertools.product(range(vocabulary_size), repeat=n)


def narrowed(case: Case, fits: Callable[[Case], bool]) -> Case:
    """Restrict the draft's laws until a case fits: to two tokens per context where that still fits, else to one.

    Contexts near the root come first. Of two tokens one is admitted and one is not, where there are such. The target
    keeps its full support.

    Args:
        case: the case. It is returned as it is if it fits.
        fits: whether a case is small enough.
    """
    if fits(case):
        return case
    q = {context: _restricted(case, context, 1) for context in case.q if len(context) < case.length}
    for context in q:
        wider = replace(case, q={**q, context: _restricted(case, context, 2)})
        if fits(wider):
            q = dict(wider.q)
    return replace(case, q=q)


def _restricted(case: Case, context: Context, count: int) -> Tensor:
    """The draft's law restricted to its heaviest tokens, admitted and not admitted ones in turn."""
    law = case.q[context]
    admitted = case.admitted.get(context, torch.ones_like(law, dtype=torch.bool))
    groups = [(law * flags).argsort(descending=True, stable=True).tolist() for flags in (admitted, ~admitted)]
    groups = [
        [token for token in group if law[token] > 0 and admitted[token] == wanted]
        for group, wanted in zip(groups, (True, False), strict=True)
    ]
    in_turn = [token for pair in itertools.zip_longest(*groups) for token in pair if token is not None]
    return _normalised(torch.zeros_like(law).index_copy_(0, torch.tensor(in_turn[:count]), law[in_turn[:count]]))


def _admitted_by_companion(q: Laws, c: Laws, threshold: float = 0.7) -> dict[Context, Tensor]:
    """Admit the tokens whose signal A = min(1, c / q) passes a threshold; never all of them, so every place cuts."""
    admitted = {}
    for context, law in q.items():
        signal = (c[context] / law).clamp(max=1)
        flags = signal > threshold
        flags[signal.argmin()] = False
        admitted[context] = flags
    return admitted


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def _index(size: int, generator: torch.Generator) -> int:
    return int(torch.randint(size, (), generator=generator))
