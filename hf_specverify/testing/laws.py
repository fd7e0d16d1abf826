"""The exact law of what a verifier puts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import get_args

import torch
from torch import Tensor

from hf_specverify.verification.base import DraftKind, Verifier
from hf_specverify.verification.draws import Draws

from .cases import Case, Context
from .draws import enumerate_outcomes
from .proposals import Proposal, Proposer

Decision = tuple[Context, int]
"""The accepted tokens and the verifier's own token after them."""


@dataclass(frozen=True, eq=False)
class OutputLaw:
    """What a verifier does to a case.

    Attributes:
        law: float64, L + 1 dimensions of size V: the law of the next L + 1 tokens of the output.
        expected_accepted: the expected number of accepted draft tokens per block.
    """

    law: Tensor
    expected_accepted: float


def target_law(case: Case, context: Context = ()) -> Tensor:
    """Return the target's own law of the tokens after `context` up to the (L + 1)-th, one dimension per token."""
    if len(context) > case.length:
        return torch.ones((), dtype=torch.float64)
    law = case.p[context]
    return torch.stack([law[token] * target_law(case, (*context, token)) for token in range(law.shape[0])])


def output_law(
    verifier: Verifier,
    case: Case,
    num_paths: int = 1,
    drafts: DraftKind = "independent",
    batched: bool = False,
    branching: Sequence[int] | None = None,
) -> OutputLaw:
    """Compute the exact law of the first L + 1 output tokens, and the expected number of accepted draft tokens.

    The sum goes over everything that the draft proposes and every decision of the verifier. Positions that a block
    leaves open are filled from the target, as later blocks of a lossless verifier would fill them.

    Args:
        verifier: the rule under test.
        case: the target, the draft and the schedule.
        num_paths: K, how many walks are drawn: K tokens at the root, then one after each.
        drafts: how the K tokens at the root are drawn, see `DraftKind`; deterministic drafts are never cut.
        batched: call `verify_batch` in place of `verify`.
        branching: the number of tokens drawn after a node of each of the L levels, in place of `num_paths`.

    Raises:
        ValueError: naming an argument that is not as described.
    """
    branching = _checked_branching(case, num_paths, drafts, branching)
    remaining = cache(lambda context: target_law(case, context))
    law, expected, proposer = torch.zeros_like(remaining(())), 0.0, Proposer(case)
    for proposal in proposer.proposals(drafts, branching):
        for (path, next_token), chance in decision_law(verifier, proposer, proposal, batched).items():
            output, probability = (*path, next_token), proposal.probability * chance
            law[output] += probability * remaining(output)
            expected += probability * len(path)
    return OutputLaw(law, expected)


def decision_law(verifier: Verifier, proposer: Proposer, proposal: Proposal, batched: bool) -> dict[Decision, float]:
    """The probability of everything that a verifier can decide on one proposal."""
    decide = _decide_batch(verifier, proposer, proposal) if batched else _decide_tree(verifier, proposer, proposal)
    law: dict[Decision, float] = {}
    for probability, decision in enumerate_outcomes(decide):
        law[decision] = law.get(decision, 0.0) + probability
    return law


def law_error(
    verifier: Verifier,
    case: Case,
    num_paths: int = 1,
    drafts: DraftKind = "independent",
    batched: bool = False,
    branching: Sequence[int] | None = None,
) -> float:
    """Return the largest difference between the verifier's output law and the target's; arguments as `output_law`."""
    result = output_law(verifier, case, num_paths, drafts, batched, branching)
    return float((result.law - target_law(case)).abs().max())


def _checked_branching(
    case: Case, num_paths: int, drafts: DraftKind, branching: Sequence[int] | None
) -> tuple[int, ...]:
    if drafts not in get_args(DraftKind):
        raise ValueError(f"drafts must be one of {get_args(DraftKind)}, got {drafts!r}")
    if branching is None:
        branching = (num_paths, *[1] * (case.length - 1))
    if len(branching) != case.length or not all(count >= 1 for count in branching):
        raise ValueError(f"branching and num_paths must be {case.length} counts of at least 1, got {tuple(branching)}")
    return tuple(branching)


def _decide_tree(verifier: Verifier, proposer: Proposer, proposal: Proposal) -> Callable[[Draws], Decision]:
    tree = proposer.tree(proposal)
    p = proposer.target(tree.tokens, tree.parents)

    def decide(draws: Draws) -> Decision:
        verdict = verifier.verify(tree, p, draws)
        return tuple(tree.tokens[verdict.path].tolist()), int(verdict.next_token)

    return decide


def _decide_batch(verifier: Verifier, proposer: Proposer, proposal: Proposal) -> Callable[[Draws], Decision]:
    drafts = proposer.batch([proposal])
    tokens = drafts.tokens[0]
    parents = getattr(drafts, "parents", torch.arange(len(tokens))[None] - 1)[0]
    p = proposer.target(tokens, parents)[None]

    def decide(draws: Draws) -> Decision:
        verdict = verifier.verify_batch(drafts, p, draws)
        path = torch.arange(len(tokens)) if verdict.path is None else verdict.path[0]
        return tuple(tokens[path[: int(verdict.accepted)]].tolist()), int(verdict.next_token)

    return decide
