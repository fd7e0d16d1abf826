"""The laws that lossy rules state, written from their formulas, and the proof that the code has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from hf_specverify.drafting.batch import DraftBatch
from hf_specverify.testing import Case, Context, Proposal, Proposer, contexts, enumerate_outcomes
from hf_specverify.testing.laws import Decision, decision_law
from hf_specverify.verification.draws import Draws
from hf_specverify.verification.lossy import (
    Cactus,
    Cascade,
    Collaborative,
    Contrastive,
    Fuzzy,
    Lenience,
    LossyRule,
    Mentored,
    MinP,
    Typical,
)

Form = Callable[[Tensor, Tensor], Tensor]
"""From p and q (…, V) to a law or acceptance (…, V)."""


@dataclass(frozen=True)
class Stated:
    """A rule, and what it says it does."""

    rule: LossyRule
    acceptance: Form
    law: Form

    @property
    def name(self) -> str:
        return str(self.rule).replace("max_overshoot=None, ", "")

    def capped(self, overshoot: float) -> Stated:
        """The same with `max_overshoot`."""

        def acceptance(p: Tensor, q: Tensor) -> Tensor:
            return torch.minimum(self.acceptance(p, q), at_most_one(overshoot * p, q))

        def law(p: Tensor, q: Tensor) -> Tensor:
            accepted = q * acceptance(p, q)
            return accepted + (1 - total(accepted)) * norm((p - accepted).clamp(min=0), p)

        return Stated(replace(self.rule, max_overshoot=overshoot), acceptance, law)


def total(values: Tensor) -> Tensor:
    return values.sum(dim=-1, keepdim=True)


def norm(weights: Tensor, otherwise: Tensor) -> Tensor:
    return torch.where(total(weights) > 0, weights / total(weights), otherwise)


def at_most_one(numerator: Tensor, q: Tensor) -> Tensor:
    return torch.where(q > 0, (numerator / q).clamp(max=1), 1)


def min_p_set(base: float) -> Callable[[Tensor], Tensor]:
    return lambda p: p >= base * p.amax(dim=-1, keepdim=True) * (1 - 1e-12)


def typical_set(epsilon: float, delta: float) -> Callable[[Tensor], Tensor]:
    def members(p: Tensor) -> Tensor:
        entropy = -total(torch.where(p > 0, p * p.log(), 0))
        return p >= torch.minimum(torch.full_like(entropy, epsilon), delta * torch.exp(-entropy)) * (1 - 1e-12)

    return members


def truncation(rule: LossyRule, members: Callable[[Tensor], Tensor], residual: str = "target") -> Stated:
    def law(p: Tensor, q: Tensor) -> Tensor:
        inside = q * members(p)
        return inside + (1 - total(inside)) * p if residual == "target" else norm(inside, p)

    return Stated(rule, lambda p, q: members(p).to(p.dtype), law)


def ceiling(rule: LossyRule, bound: Callable[[Tensor], Tensor]) -> Stated:
    def law(p: Tensor, q: Tensor) -> Tensor:
        c = bound(p)
        distance = total((p - q).clamp(min=0))
        share = torch.where(distance > 0, total((q - c).clamp(min=0)) / distance, 0)
        return torch.where(q <= p, share * p + (1 - share) * q, torch.where(q < c, q, c))

    return Stated(rule, lambda p, q: at_most_one(bound(p), q), law)


def mixture(rule: LossyRule, law: Form) -> Stated:
    return Stated(rule, lambda p, q: at_most_one(law(p, q), q), law)


def token_cascade(members: Callable[[Tensor], Tensor]) -> Form:
    return lambda p, q: q * members(p) + (1 - total(q * members(p))) * p


def deferral(rule: LossyRule, deferred: Form) -> Stated:
    return mixture(rule, lambda p, q: torch.where(deferred(p, q), p, q))


def best(law: Tensor) -> Tensor:
    return law.amax(dim=-1, keepdim=True)


def distance(p: Tensor, q: Tensor) -> Tensor:
    return total((p - q).abs()) / 2


def kl(p: Tensor, q: Tensor) -> Tensor:
    return total(torch.where(p > 0, p * (p / q).log(), 0))


def js(p: Tensor, q: Tensor) -> Tensor:
    return (kl(p, (p + q) / 2) + kl(q, (p + q) / 2)) / 2


def fuzzy(rule: Fuzzy, divergence: Form) -> Stated:
    def close(p: Tensor, q: Tensor) -> Tensor:
        return divergence(p, q) <= rule.threshold

    return Stated(
        rule,
        lambda p, q: torch.where(close(p, q), 1, at_most_one(p, q)),
        lambda p, q: torch.where(close(p, q), q, p),
    )


def mentored(rule: Mentored) -> Stated:
    """With the α and β of the rule, which have tests of their own."""

    def law(p: Tensor, q: Tensor) -> Tensor:
        alpha, beta = rule.statistics(p, q)
        return torch.minimum(torch.maximum(q, p / beta), p / alpha)

    return Stated(rule, lambda p, q: at_most_one(p / rule.statistics(p, q)[0], q), law)


def contrastive(mu: float, floor: float) -> Form:
    def law(p: Tensor, q: Tensor) -> Tensor:
        weights = p / torch.where(q < floor, floor, q) ** mu
        return weights / total(weights)

    return law


STATED = [
    truncation(Typical(), typical_set(0.3, 0.3**0.5)),
    truncation(Typical(epsilon=0.6, delta=1.0), typical_set(0.6, 1.0)),
    truncation(Typical(residual="draft"), typical_set(0.3, 0.3**0.5), "draft"),
    truncation(MinP(p_base=0.4), min_p_set(0.4)),
    truncation(MinP(p_base=0.4, residual="draft"), min_p_set(0.4), "draft"),
    ceiling(Lenience(leniency=0.6), lambda p: p / 0.6),
    ceiling(Cactus(delta=0.05), lambda p: (p + (0.1 * p * (1 - p)).sqrt()).clamp(max=1)),
    mixture(Collaborative(weight=0.7), lambda p, q: 0.7 * p + 0.3 * q),
    mixture(Contrastive(mu=0.3, floor=0.05), contrastive(0.3, 0.05)),
    mentored(Mentored(divergence=0.05)),
    mixture(Cascade(threshold=0.4), token_cascade(min_p_set(0.4))),
    mixture(Cascade(kind="token_typical", threshold=0.3), token_cascade(typical_set(0.3, 0.3**0.5))),
    deferral(Cascade(kind="chow", threshold=0.4), lambda p, q: best(q) < 0.6),
    deferral(Cascade(kind="diff", threshold=0.1), lambda p, q: best(q) < best(p) - 0.1),
    deferral(Cascade(kind="opt", threshold=0.47), lambda p, q: best(q) < best(p) - 0.47 * distance(p, q)),
    fuzzy(Fuzzy(threshold=0.2, divergence="tv"), distance),
    fuzzy(Fuzzy(threshold=0.2, divergence="kl"), kl),
    fuzzy(Fuzzy(threshold=0.05), js),
]
CAPPED = [stated.capped(1.5) for stated in STATED if getattr(stated.rule, "residual", "target") == "target"]


def assert_has_law(rule: LossyRule, law: Form, cases: Iterator[Case], tolerance: float = 1e-9) -> None:
    """Check the law of the first L tokens, and of the bonus token, over all that the code can decide."""
    for case in cases:
        for drafts in ("independent", "deterministic"):
            if drafts not in rule.info.drafts or (drafts == "deterministic" and case.admitted):
                continue
            for batched in (False, True):
                error = max(law_errors(rule, law, case, drafts, batched))
                if not error <= tolerance:
                    raise AssertionError(f"{rule} is off by {error:.1e} on {case.name!r}, {drafts}, batched={batched}")


def law_errors(rule: LossyRule, law: Form, case: Case, drafts: str, batched: bool) -> tuple[float, float]:
    """How far the law of the first L tokens is from the stated one, and that of the bonus token from p.

    What a block leaves open of the first L tokens is filled by the stated law, as a block that begins there would.
    """
    proposer, size = Proposer(case), len(case.p[()])
    q = {context: law_of(case, context, drafts) for context in contexts(case.length - 1, size)}
    stated = {context: law(case.p[context], q[context]) for context in q}
    joint = torch.zeros((size,) * case.length, dtype=torch.float64)
    bonus: dict[Context, Tensor] = {}
    for proposal in proposer.proposals(drafts, (1,) * case.length):  # type: ignore[arg-type]
        for (path, token), chance in decisions(rule, proposer, proposal, batched).items():
            output = (*path, token)[: case.length]
            joint[output] += proposal.probability * chance * continuation(stated, output, case.length)
            if len(path) == case.length:
                bonus.setdefault(path, torch.zeros(size).double())[token] += chance
    errors = [float((weights / weights.sum() - case.p[path]).abs().max()) for path, weights in bonus.items()]
    return float((joint - continuation(stated, (), case.length)).abs().max()), max(errors, default=0.0)


def law_of(case: Case, context: Context, drafts: str) -> Tensor:
    """The draft's whole law after a context."""
    law = case.q[context]
    return (
        law if drafts == "independent" else torch.eye(len(law)).double()[law.argsort(descending=True, stable=True)[0]]
    )


def continuation(stated: dict[Context, Tensor], context: Context, length: int) -> Tensor:
    """The law of the tokens after a context up to the L-th, one dimension each."""
    if len(context) == length:
        return torch.ones((), dtype=torch.float64)
    parts = [continuation(stated, (*context, token), length) for token in range(len(stated[()]))]
    return torch.stack([chance * part for chance, part in zip(stated[context], parts, strict=True)])


def decisions(rule: LossyRule, proposer: Proposer, proposal: Proposal, batched: bool) -> dict[Decision, float]:
    """The probability of all that a rule can decide on one proposal; with cuts by the law and v apart."""
    if not batched and not proposer.case.admitted:
        return decision_law(rule, proposer, proposal, False)
    found: dict[Decision, float] = {}
    for chance, decision in enumerate_outcomes(decide(rule, proposer, proposal, batched)):
        found[decision] = found.get(decision, 0.0) + chance
    return found


def decide(rule: LossyRule, proposer: Proposer, proposal: Proposal, batched: bool) -> Callable[[Draws], Decision]:
    case, walk = proposer.case, proposal.walks[0]
    tokens, rows = torch.tensor(walk, dtype=torch.long), range(min(len(walk) + 1, case.length))
    p = proposer.target(tokens, torch.arange(len(walk)) - 1)
    q = torch.stack([case.q[walk[:place]] for place in rows])
    v = torch.stack([case.admitted.get(walk[:place], torch.ones_like(q[0], dtype=torch.bool)) for place in rows])

    def readable(draws: Draws) -> Decision:
        verdict = rule.verify_chain(tokens, q, p, draws, v)
        return tuple(tokens[verdict.path].tolist()), int(verdict.next_token)

    if proposal.drafts == "deterministic":
        drafts = DraftBatch(tokens[None], (len(walk),), None)
    elif case.admitted:
        drafts = DraftBatch(
            tokens[None], (len(walk),), q[None], (len(walk) < case.length,), lambda _, places: v[places]
        )
    else:
        drafts = DraftBatch(tokens[None], (len(walk),), q[None])

    def fast(draws: Draws) -> Decision:
        verdict = rule.verify_batch(drafts, p[None], draws)
        return walk[: int(verdict.accepted)], int(verdict.next_token)

    return fast if batched else readable


def random_laws(rows: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pairs of laws (rows, V) in float64: near ones and far ones, some with zeros, some one-hot."""
    generator = torch.Generator().manual_seed(seed)
    p, other = (torch.softmax(2 * torch.randn(rows, size, generator=generator).double(), -1) for _ in range(2))
    q = torch.lerp(p, other, torch.rand(rows, 1, generator=generator).double() ** 2)
    for law in (p, q):
        zeros = (torch.rand(rows, size, generator=generator) < 0.3) & (torch.arange(rows) % 3 == 0)[:, None]
        law.masked_fill_(zeros & (law < law.amax(dim=1, keepdim=True)), 0)
    q[::7] = torch.eye(size).double()[torch.randint(size, (len(q[::7]),), generator=generator)]
    assert prod(p.shape) == rows * size
    return p / total(p), q / total(q)
