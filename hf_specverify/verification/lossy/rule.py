"""What all lossy rules share: how they decide on chains of drafted tokens, position by position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.drafting.tree import DraftTree
from hf_specverify.drafting.tree_batch import TreeBatch
from hf_specverify.verification.base import (
    BatchVerdict,
    Verdict,
    Verifier,
    check_batch,
    check_chain,
    leading_run,
    wide,
)
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.laws import law_of_child

from .drafted import check_drafts, check_whole_laws, draft_law, drafted_probabilities, gather_statistics
from .one_step import OneStepRule


@dataclass(frozen=True, kw_only=True)
class LossyRule(OneStepRule, Verifier):
    """A verifier that decides on one position after the other by a `OneStepRule`.

    Every position that was drafted has the rule's one-step law, given the tokens before it. The bonus token, behind a
    block that was accepted whole or in a row without drafts, is the target's own: its law is p.

    Cuts of a schedule that looked at the drawn tokens are exact for every rule: with v saying which tokens would have
    been let through, the token after a rejection or a cut comes from law - q·v·a = q·a·(1 - v) + (1 - Σ q·a)·norm(r),
    and the law stays what it is. This needs q and v apart, as `DraftBatch.corrected` keeps them; laws that hold v
    already are refused.
    """

    @property
    def description(self) -> str:
        """The name and all parameters that are set: "lenience(leniency=0.5)"."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items() if value is not None)
        return f"{self.info.name}({given})"

    @property
    def matches_greedy(self) -> bool:
        """Whether at a one-hot p the rule emits the target's choice only, as `verify_greedy` does.

        Where it does not, it has to be refused for greedy targets.
        """
        return self.max_overshoot is not None or self._matches_greedy()

    def _matches_greedy(self) -> bool:
        """`matches_greedy` of the rule's own a and r."""
        return True

    def verify(self, tree: DraftTree, p: Tensor, draws: Draws) -> Verdict:
        """Decide on one chain, see `Verifier.verify`.

        Raises:
            ValueError: also for laws that hold a schedule's v, and for drafts that the rule does not take.
        """
        check_chain(tree, p, self.info.name)
        check_whole_laws(tree, self.info)
        laws = [law_of_child(tree, node - 1, node, wide(p[node])) for node in range(tree.num_nodes)]
        return self.verify_chain(tree.tokens, torch.stack(laws) if laws else p[:0], p, draws)

    def verify_chain(
        self, tokens: Tensor, q: Tensor, p: Tensor, draws: Draws, admitted: Tensor | None = None
    ) -> Verdict:
        """Decide on one chain: the readable form, cuts included.

        Args:
            tokens: (n,) long.
            q: (n, V), the law of each token; or (n + 1, V) where the chain was cut behind the last one.
            p: (n + 1, V), the target's laws.
            draws: the source of randomness.
            admitted: v, bool of the shape of q, where a schedule looked at the drawn tokens.
        """
        for place in range(len(q)):
            p_row = wide(p[place])
            q_row = wide(q[place]).to(p_row.dtype)
            is_drafted = place < len(tokens)
            if is_drafted and bool(draws.accept(self.acceptance(p_row, q_row)[tokens[place]])):
                continue
            weights = self.next_weights(p_row, q_row, None if admitted is None else admitted[place])
            return Verdict(torch.arange(place, device=tokens.device), draws.sample(weights))
        return Verdict(torch.arange(len(tokens), device=tokens.device), draws.sample(wide(p[-1])))

    def verify_batch(self, drafts: DraftBatch | TreeBatch, p: Tensor, draws: Draws) -> BatchVerdict:
        """Decide on a batch of chains, see `Verifier.verify_batch`; whole laws for statistics and next tokens only.

        Raises:
            ValueError: as `verify`.
        """
        if isinstance(drafts, TreeBatch):
            return super().verify_batch(drafts, p, draws)
        check_batch(drafts, p)
        check_drafts(drafts, self.info)
        chances = torch.where(drafts.exists, self.drafted_acceptance(drafts, p), 0)
        accepted = leading_run(draws.accept(chances))
        return BatchVerdict(accepted, draws.sample(self._weights_after(drafts, p, accepted)))

    def drafted_acceptance(self, drafts: DraftBatch, p: Tensor) -> Tensor:
        """(B, L) the probability that each drafted token is accepted by itself; anything beyond a row's length."""
        if not drafts.tokens.shape[1]:
            return wide(p[:, :0, 0])
        statistics = gather_statistics(self.statistics, drafts, p) if self.has_statistics else ()
        return self._acceptance(*drafted_probabilities(drafts, p), statistics).squeeze(2)

    def _weights_after(self, drafts: DraftBatch, p: Tensor, accepted: Tensor) -> Tensor:
        """(B, V) weights of the next token: p where no law of the draft stands behind the accepted tokens."""
        rows = torch.arange(p.shape[0], device=p.device)
        p_row = wide(p[rows, accepted])
        laws = drafts.tokens.shape[1] if drafts.q is None else drafts.q.shape[1]
        if laws == 0:
            return p_row
        places, drawn = accepted.clamp(max=laws - 1), accepted < drafts.law_rows
        admitted = None if drafts.q is None or drafts.admitted is None else drafts.admitted(rows, places)
        weights = self.next_weights(p_row, draft_law(drafts, rows, places, p_row), admitted)
        return torch.where(drawn[:, None], weights, p_row)
