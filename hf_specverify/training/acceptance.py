"""The acceptance head: what the head's own output says of its acceptance, learnt once the head stays as it is.

It learns from texts that the head was not trained on (`Examples.unknown_to_the_head`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..drafting.heads import AcceptanceHead, HeadModel
from .examples import Example, Examples
from .optimising import precision
from .settings import HeadTraining
from .unroll import at_step, unroll_states

RATE = 3e-3  # the highest learning rate; the network is small, and its inputs are of one size


@dataclass(frozen=True)
class AcceptanceQuality:
    """How well an acceptance head predicts, on texts that neither it nor the head was trained on.

    Attributes:
        error: mean absolute error of its estimates of 1 - TV(p, q).
        bits: that it tells about whether a token drawn at temperature 1 is accepted, of the entropy in bits.
        entropy: of that, in bits, where only the mean acceptance is known.
    """

    error: float
    bits: float
    entropy: float


def new_acceptance_head(head: HeadModel, seed: int) -> AcceptanceHead:
    """An untrained one for a head, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AcceptanceHead(head.config.hidden_size).to(head.device)


def overlap(scores: Tensor, tokens: Tensor, chances: Tensor) -> Tensor:
    """1 - TV(p, q) = Σ min(p, q) of the target's law as far as it was kept, and of the head's at temperature 1.

    Mass of p that was not kept counts as not accepted, and so does mass outside the draft vocabulary, where q is 0. So
    it is the acceptance or a little less.

    Args:
        scores: (m, D) of the draft vocabulary.
        tokens: (m, K) long, places in the draft vocabulary.
        chances: (m, K), their probabilities p; see `Laws`.

    Returns:
        (m,) float32.
    """
    scores = scores.float()
    q = (scores.gather(-1, tokens) - scores.logsumexp(dim=-1, keepdim=True)).exp()
    return torch.minimum(q, chances).sum(dim=-1)


def read_places(head: HeadModel, example: Example, steps: int) -> tuple[Tensor, Tensor]:
    """All places of all unrolled steps that are learned from: (m, H) what the head scores with, (m,) the overlap."""
    laws, read, accepted = example.laws, [], []
    for step, states in enumerate(unroll_states(head, example.tokens, example.features, steps)):
        learn = at_step(laws.learn, step)
        chosen = states[:, : learn.shape[1]][learn]
        tokens, chances = at_step(laws.tokens, step)[learn], at_step(laws.chances, step)[learn]
        read.append(chosen)
        accepted.append(overlap(head.logits(chosen), tokens, chances))
    return torch.cat(read), torch.cat(accepted)


def acceptance_loss(acceptance: AcceptanceHead, head: HeadModel, settings: HeadTraining) -> Callable[[Example], Tensor]:
    """The mean binary cross-entropy of a batch; the head stays as it is."""

    def loss(example: Example) -> Tensor:
        with torch.no_grad(), precision(head, settings):
            read, accepted = read_places(head, example, settings.unroll)
        missing = binary_cross_entropy_with_logits(acceptance.logits(read), accepted, reduction="sum")
        return missing / max(1, len(accepted))

    return loss


def judge(acceptance: AcceptanceHead, head: HeadModel, examples: Examples, steps: int) -> AcceptanceQuality:
    """Compare estimates and overlaps at the places of held-out texts."""
    error = missing = total = 0.0
    count = 0
    with torch.no_grad():
        for example in examples.held_out_batches():
            read, accepted = read_places(head, example, steps)
            log_odds = acceptance.logits(read)
            missing += float(binary_cross_entropy_with_logits(log_odds, accepted, reduction="sum"))
            error += float((log_odds.sigmoid() - accepted).abs().sum())
            total, count = total + float(accepted.sum()), count + len(accepted)
    count = max(1, count)
    mean = total / count
    entropy = -sum(share * math.log2(share) for share in (mean, 1 - mean) if share > 0)
    return AcceptanceQuality(error / count, entropy - missing / count / math.log(2), entropy)
