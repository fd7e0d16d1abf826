"""Drafting as training sees it: several steps in a row at every place of a text (EAGLE-3, 2503.01840, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafting.heads import HeadModel


@dataclass(frozen=True)
class Laws:
    """What the target said after each token of B texts, of which the likeliest tokens are kept.

    Attributes:
        tokens: (B, N, K) long, places in the draft vocabulary; 0 where a token is not in it.
        chances: (B, N, K) float, their probabilities among all tokens of the target; 0 where one is not in the draft
            vocabulary.
        best: (B, N) long, the likeliest token of all; -1 where it is not in the draft vocabulary.
        learn: (B, N) bool, which of them are learned from.
    """

    tokens: Tensor
    chances: Tensor
    best: Tensor
    learn: Tensor


class UnrolledKeys:
    """Keys and values of all steps so far, one step behind the other."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Those of one more step, (B, heads, N, head size), joined to the others along the places."""
        self.keys.append(key_states)
        self.values.append(value_states)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


def unroll(head: HeadModel, tokens: Tensor, features: Tensor, steps: int) -> list[Tensor]:
    """The scores of `unroll_states`, by step k (B, N, D) of token t + 2 + k, over the draft vocabulary."""
    return [head.logits(states) for states in unroll_states(head, tokens, features, steps)]


def unroll_states(head: HeadModel, tokens: Tensor, features: Tensor, steps: int) -> list[Tensor]:
    """Draft `steps` tokens from every place at once, as if each draft had been right.

    At place t the first step reads the features of token t and token t + 1, step k the head's own output of the step
    before and token t + 1 + k; it sees the features up to place t and its own steps at t.

    Args:
        head: the head.
        tokens: (B, N) long, token t + 1 at place t.
        features: (B, N, features) of the target, of token t at place t.
        steps: how many.

    Returns:
        By step k (B, N, H) what `HeadModel.logits` scores token t + 2 + k with. The last k places of step k have read
        tokens that don't exist.
    """
    size = tokens.shape[1]
    places = torch.arange(size, device=tokens.device)
    past, own = places[:, None] >= places, places[:, None] == places
    keys, hidden, states = UnrolledKeys(), head.fuse(features), []
    for step in range(steps):
        read = torch.nn.functional.pad(tokens[:, step:], (0, min(step, size)))
        mask = torch.cat([past, *[own] * step], dim=1)
        hidden, normed = head(read, hidden, (places + 1 + step)[None], mask, keys)
        states.append(normed)
    return states


def multi_step_loss(scores: Sequence[Tensor], laws: Laws, decay: float) -> Tensor:
    """The cross-entropy to the target's laws, of every step, later ones weighed down by `decay` each.

    Mass of a law that was not kept, or is on tokens outside the draft vocabulary, is not learned.

    Args:
        scores: by step k (B, N, D), as `unroll` gives them: place t is for the law after token t + 1 + k.
        laws: of the N + 1 tokens.
        decay: weight of a step against the one before it.
    """
    total = scores[0].new_zeros((), dtype=torch.float32)
    for step, part in enumerate(scores):
        tokens, chances, learn = at_step(laws.tokens, step), at_step(laws.chances, step), at_step(laws.learn, step)
        part = part[:, : tokens.shape[1]].float()
        # log q = score - normaliser; the scores are wanted at few tokens, the normaliser over all.
        missing = chances.sum(-1) * part.logsumexp(dim=-1) - (part.gather(-1, tokens) * chances).sum(-1)
        total = total + decay**step * (missing * learn).sum() / learn.sum().clamp(min=1)
    return total


def survival(scores: Sequence[Tensor], laws: Laws) -> tuple[Tensor, Tensor]:
    """How often greedy drafts of 1, 2, … tokens are the target's own greedy choices throughout.

    Returns:
        (steps,) counts of places that survived; the number of places at which a whole draft can be judged.
    """
    last = laws.best.shape[1] - len(scores)
    alive = laws.learn[:, 1 : last + 1].clone()
    for step in range(1, len(scores)):
        alive &= at_step(laws.learn, step)[:, :last]
    places, counts = alive.sum(), []
    for step, part in enumerate(scores):
        alive = alive & (part[:, :last].argmax(dim=-1) == at_step(laws.best, step)[:, :last])
        counts.append(alive.sum())
    return torch.stack(counts), places


def at_step(values: Tensor, step: int) -> Tensor:
    """Those after token t + 1 + step, at place t."""
    return values[:, 1 + step :]
