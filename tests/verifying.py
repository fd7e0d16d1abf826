"""Drafts and draws that several tests of verifiers use."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import DraftTree
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.testing import contexts
from hf_specverify.verification.draws import inverse_cdf


class FixedUniforms:
    """Draws from given uniform numbers: one tensor for the acceptances, one for the samples; keeps the weights."""

    def __init__(self, accept: Tensor, sample: Tensor) -> None:
        self.uniforms = accept, sample
        self.used = 0
        self.weights = torch.empty(0)

    def accept(self, probabilities: Tensor) -> Tensor:
        assert bool(((probabilities >= 0) & (probabilities <= 1)).all())
        if probabilities.ndim == 0:  # one position after the other
            self.used += 1
            return self.uniforms[0].flatten()[self.used - 1] < probabilities
        assert probabilities.numel() == self.uniforms[0].numel()
        return self.uniforms[0].reshape(probabilities.shape) < probabilities

    def sample(self, weights: Tensor) -> Tensor:
        self.weights = weights
        return inverse_cdf(weights, self.uniforms[1])


def constant(law: list[float], length: int) -> dict[tuple[int, ...], Tensor]:
    return dict.fromkeys(contexts(length, len(law)), torch.tensor(law, dtype=torch.float64))


def laws(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.softmax(2 * torch.randn(*shape, generator=generator), -1)


def ragged_batch(seed: int, vocabulary_size: int, with_q: bool, with_cuts: bool = False) -> tuple[DraftBatch, Tensor]:
    """Rows of different lengths, with nothing but NaN behind them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (0, 1, 4, 2, 4, 3, 0, 4)
    rows, longest = len(lengths), 4
    p = 0.4 * laws(generator, rows, longest + 1, vocabulary_size)
    peaks = torch.randint(vocabulary_size, (rows, longest + 1, 1), generator=generator)
    p.scatter_add_(2, peaks, torch.full(peaks.shape, 0.6))
    q = 0.6 * p + 0.4 * laws(generator, rows, longest + 1, vocabulary_size)
    uniforms = torch.rand(rows, longest + 1, generator=generator, dtype=torch.float64)
    tokens = inverse_cdf(q if with_q else p**2, uniforms)[:, :longest]
    cut = tuple(with_cuts and row % 2 == 0 for row in range(rows)) if with_q else None
    for row, length in enumerate(lengths):
        q[row, length + bool(cut and cut[row]) :], p[row, length + 1 :] = float("nan"), float("nan")
        if cut and cut[row]:
            q[row, length, ::3] = 0
    if not with_cuts:
        return DraftBatch(tokens, lengths, q[:, :longest] if with_q else None), p
    return DraftBatch(tokens, lengths, q if with_q else None, cut), p


def random_trees(
    generator: torch.Generator, p_laws: Tensor, q_laws: Tensor, walks: int, length: int, cut: float = 0.0
) -> tuple[TreeBatch, Tensor]:
    """Trees of independent walks, one row per law: the law after a context depends on its last token alone.

    Args:
        p_laws: (B, V + 1, V), the target's after each last token, the last row at the root. q_laws: the draft's.
        walks: K. length: L. cut: the share of walks that end early, as if the rest were not admitted.
    """
    count, size = q_laws.shape[0], q_laws.shape[2]
    drawn: list[list[list[int]]] = []
    for row in range(count):
        drawn.append([])
        for _ in range(walks):
            walk: list[int] = []
            while len(walk) < length and not bool(torch.rand((), generator=generator) < cut):
                law = q_laws[row, walk[-1] if walk else size].float()
                walk.append(int(torch.multinomial(law, 1, generator=generator)))
            drawn[row].append(walk)
    rows = [[[size, *walk][: min(len(walk) + 1, length)] for walk in tree] for tree in drawn]
    trees = TreeBatch.from_walks(drawn, q_laws, rows)
    after = torch.nn.functional.pad(trees.tokens, (1, 0), value=size)
    return trees, torch.stack([p_laws[row, after[row]] for row in range(count)])


def chain(tokens: list[int], q: Tensor) -> DraftTree:
    """A chain that simply ended, from one row of q for every token."""
    return DraftTree.chain(torch.tensor(tokens), torch.cat([q, torch.zeros_like(q[:1])]))
