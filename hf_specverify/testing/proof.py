"""The proofs: a verifier's law is the target's, and its two forms decide the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hf_specverify.verification.base import DraftKind, Verifier, VerifierInfo

from .cases import Case, cases, narrowed
from .laws import decision_law, law_error
from .proposals import Proposer

LARGEST = 100
"""Proposals per case above which the draft's laws are restricted."""


@dataclass(frozen=True, eq=False)
class Proof:
    """One thing to prove: a case, and how the drafts of its blocks are drawn.

    Attributes:
        case: the toy models.
        drafts: how children are drawn.
        branching: how many at each level.
    """

    case: Case
    drafts: DraftKind
    branching: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"the case {self.case.name!r} (length {self.case.length}, vocabulary {len(self.case.p[()])}, "
            f"drafts {self.drafts}, branching {self.branching})"
        )


def assert_lossless(
    verifier: Verifier,
    lengths: Sequence[int] = (1, 2, 3),
    vocabulary_sizes: Sequence[int] = (2, 3, 4),
    num_paths: Sequence[int] = (1, 2, 3),
    seed: int = 0,
    tolerance: float = 1e-9,
) -> None:
    """Check `verify` on every case of `cases` with every kind of draft that the verifier says it takes.

    `verify_batch` is checked in the same way if it is the verifier's own. A verifier of chains gets single walks;
    others K walks, and without replacement also two tokens at each of the first two levels. Where a draft could propose
    more than 100 different blocks its laws are restricted to two tokens per context, and from some depth on to one, so
    that the whole takes about a minute; the target keeps its full support.

    Args:
        verifier: the rule under test.
        lengths: values of L.
        vocabulary_sizes: values of V.
        num_paths: values of K.
        seed: of the random tables.
        tolerance: the largest error of any probability of the output.

    Raises:
        AssertionError: naming the first case whose output law is off by more than `tolerance`.
    """
    for proof in proofs(verifier.info, lengths, vocabulary_sizes, num_paths, seed):
        for batched in (False, True) if _has_batched_form(verifier) else (False,):
            error = law_error(verifier, proof.case, drafts=proof.drafts, batched=batched, branching=proof.branching)
            if not error <= tolerance:
                method = "verify_batch" if batched else "verify"
                raise AssertionError(f"{verifier.info.name}.{method} is off by {error:.1e} on {proof}, seed {seed}")


def assert_same_decisions(
    verifier: Verifier,
    lengths: Sequence[int] = (1, 2, 3),
    vocabulary_sizes: Sequence[int] = (2, 3, 4),
    num_paths: Sequence[int] = (1, 2, 3),
    seed: int = 0,
    tolerance: float = 1e-12,
) -> None:
    """Check that for every block `verify_batch` has the law of accepted tokens and next token that `verify` has.

    Arguments as `assert_lossless`.

    Raises:
        AssertionError: naming the first block for which a probability differs by more than `tolerance`.
    """
    for proof in proofs(verifier.info, lengths, vocabulary_sizes, num_paths, seed):
        proposer = Proposer(proof.case)
        for proposal in proposer.proposals(proof.drafts, proof.branching):
            expected, found = (decision_law(verifier, proposer, proposal, batched) for batched in (False, True))
            for decision in {**expected, **found}:
                difference = abs(expected.get(decision, 0.0) - found.get(decision, 0.0))
                if not difference <= tolerance:
                    raise AssertionError(
                        f"{verifier.info.name}.verify_batch decides {decision} with a probability that is off by "
                        f"{difference:.1e} for the walks {proposal.walks} of {proof}, seed {seed}"
                    )


def proofs(
    info: VerifierInfo,
    lengths: Sequence[int] = (1, 2, 3),
    vocabulary_sizes: Sequence[int] = (2, 3, 4),
    num_paths: Sequence[int] = (1, 2, 3),
    seed: int = 0,
) -> Iterator[Proof]:
    """Yield every case with every kind of draft that a verifier says it takes; arguments as `assert_lossless`."""
    for length, size in itertools.product(lengths, vocabulary_sizes):
        for case in cases(length, size, seed):
            for drafts, branching in _plans(info, length, num_paths):
                if drafts != "deterministic" or not case.admitted:  # no cut of a deterministic draft needs a correction
                    yield Proof(narrowed(case, _is_small(drafts, branching)), drafts, branching)


def _plans(info: VerifierInfo, length: int, num_paths: Sequence[int]) -> Iterator[tuple[DraftKind, tuple[int, ...]]]:
    """How drafts are drawn: every kind that the verifier takes, with every K; on a chain all but one are the same."""
    for drafts in info.drafts:
        chains_only = info.structure == "chain"
        for count in num_paths:
            if count == 1 and drafts == "without_replacement" and "independent" in info.drafts:
                continue
            if count == 1 or not chains_only:
                yield drafts, (count, *[1] * (length - 1))
        if drafts == "without_replacement" and not chains_only and length > 1 and max(num_paths) > 1:
            yield drafts, (2, 2, *[1] * (length - 2))


def _is_small(drafts: DraftKind, branching: tuple[int, ...]) -> Callable[[Case], bool]:
    def fits(case: Case) -> bool:
        proposals = Proposer(case).proposals(drafts, branching)
        return next(itertools.islice(proposals, LARGEST, None), None) is None

    return fits


def _has_batched_form(verifier: Verifier) -> bool:
    return type(verifier).verify_batch is not Verifier.verify_batch
