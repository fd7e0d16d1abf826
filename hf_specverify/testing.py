"""Prove a verifier: compute its exact output law by walking every decision that it can take.

A verifier draws only through `Draws`. `enumerate_outcomes` runs it once for every combination of outcomes of those
draws, and `output_law` sums them up over every block that a draft can propose. What comes out is the law of the
output to the last bits of float64, with no sampling error, so a bias of 1e-6 shows as clearly as one of 0.1:

    from hf_specverify.testing import assert_lossless
    assert_lossless(MyVerifier())
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from hf_specverify.drafting.tree import DraftBatch, DraftTree
from hf_specverify.verification.base import Verifier
from hf_specverify.verification.draws import Draws

Context = tuple[int, ...]
Laws = Mapping[Context, Tensor]
"""A toy language model: the law (V,) float64 of the next token after each context."""

Result = TypeVar("Result")


class ScriptedDraws:
    """Draws that follow a script and add up the probability of what happened.

    The k-th draw takes the outcome number `script[k]` among those with a positive probability; beyond the end of the
    script, number 0. An `accept` call of n entries has up to 2^n outcomes, a `sample` call one per token of positive
    weight (over several rows: their product).

    Attributes:
        choices: the number of the outcome taken at each draw so far.
        counts: how many outcomes each of those draws had.
        probability: the probability of everything drawn so far.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.choices: list[int] = list(script)
        self.counts: list[int] = []
        self.probability = 1.0

    def accept(self, probabilities: Tensor) -> Tensor:
        """As `Draws.accept`."""
        chances = [min(max(chance, 0.0), 1.0) for chance in probabilities.double().flatten().tolist()]
        flags = self._choose([[(True, chance), (False, 1 - chance)] for chance in chances])
        return torch.tensor(flags, dtype=torch.bool, device=probabilities.device).reshape(probabilities.shape)

    def sample(self, weights: Tensor) -> Tensor:
        """As `Draws.sample`."""
        rows = weights.double().reshape(-1, weights.shape[-1]).tolist()
        if not all(0 < sum(row) < float("inf") for row in rows):
            raise ValueError(f"weights must be finite, with at least one positive weight in every row, got {rows}")
        tokens = self._choose([[(token, weight / sum(row)) for token, weight in enumerate(row)] for row in rows])
        return torch.tensor(tokens, dtype=torch.long, device=weights.device).reshape(weights.shape[:-1])

    def _choose(self, options: list[list[tuple[Result, float]]]) -> list[Result]:
        """Make one draw of independent parts, given the values of each part with their probabilities."""
        outcomes = list(itertools.product(*([option for option in part if option[1] > 0] for part in options)))
        draw = len(self.counts)
        if draw == len(self.choices):
            self.choices.append(0)
        self.counts.append(len(outcomes))
        chosen = outcomes[self.choices[draw]]
        for _, chance in chosen:
            self.probability *= chance
        return [value for value, _ in chosen]


def enumerate_outcomes(function: Callable[[Draws], Result]) -> Iterator[tuple[float, Result]]:
    """Run `function` once for every way that its draws can turn out.

    `function` must do the same thing whenever its draws turn out the same.

    Yields:
        The probability of each way, and what `function` returned; the probabilities add up to 1.
    """
    script: list[int] = []
    while True:
        draws = ScriptedDraws(script)
        result = function(draws)
        yield draws.probability, result
        script = draws.choices
        while script and script[-1] == draws.counts[len(script) - 1] - 1:
            script.pop()
        if not script:
            return
        script[-1] += 1


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


def draft_blocks(
    case: Case, prefix: Context = (), rows: tuple[Tensor, ...] = ()
) -> Iterator[tuple[float, Context, Tensor]]:
    """Yield every block that the draft and the schedule can propose.

    Yields:
        The block's probability, its tokens (n of them, n ≤ L), and q (n + 1, V) as `DraftTree.chain` takes it: rows
        q·v, the last one zeros where the block was not cut.
    """
    if len(prefix) == case.length:
        yield 1.0, prefix, torch.stack([*rows, torch.zeros_like(case.p[()])])
        return
    law = case.q[prefix]
    admitted = case.admitted.get(prefix, torch.ones_like(law, dtype=torch.bool))
    rows = (*rows, law * admitted)
    cut = float(law[~admitted].sum())
    if cut > 0:
        yield cut, prefix, torch.stack(rows)
    for token in rows[-1].nonzero().flatten().tolist():
        for probability, tokens, q in draft_blocks(case, (*prefix, token), rows):
            yield float(law[token]) * probability, tokens, q


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


def output_law(verifier: Verifier, case: Case, batched: bool = False) -> OutputLaw:
    """Compute the exact law of the first L + 1 output tokens, and the expected number of accepted draft tokens.

    The sum goes over every block that the draft proposes and every decision of the verifier. Positions that a block
    leaves open are filled from the target, as later blocks of a lossless verifier would fill them.

    Args:
        verifier: the rule under test.
        case: the target, the draft and the schedule.
        batched: call `verify_batch` in place of `verify`; only for a case without cuts.

    Raises:
        ValueError: if `batched` is asked of a case with cuts, which a `DraftBatch` cannot express.
    """
    if batched and case.admitted:
        raise ValueError(f"batched must be False for a case with cuts, got True for {case.name!r}")
    decide = _decide_batch if batched else _decide_tree
    remaining = cache(lambda context: target_law(case, context))
    law = torch.zeros_like(remaining(()))
    expected = 0.0
    for block_probability, tokens, q in draft_blocks(case):
        p = torch.stack([case.p[tokens[:place]] for place in range(len(tokens) + 1)])
        for probability, (path, next_token) in enumerate_outcomes(decide(verifier, tokens, q, p)):
            output = (*path, next_token)
            law[output] += block_probability * probability * remaining(output)
            expected += block_probability * probability * len(path)
    return OutputLaw(law, expected)


def law_error(verifier: Verifier, case: Case, batched: bool = False) -> float:
    """Return the largest difference between the verifier's output law and the target's."""
    return float((output_law(verifier, case, batched).law - target_law(case)).abs().max())


def assert_lossless(
    verifier: Verifier,
    lengths: Sequence[int] = (1, 2, 3),
    vocabulary_sizes: Sequence[int] = (2, 3, 4),
    seed: int = 0,
    tolerance: float = 1e-9,
) -> None:
    """Check `verify` on every case of `cases`, and `verify_batch` on those without cuts.

    Raises:
        AssertionError: naming the first case whose output law is off by more than `tolerance`.
    """
    for length, size in itertools.product(lengths, vocabulary_sizes):
        for case in cases(length, size, seed):
            for batched in (False,) if case.admitted else (False, True):
                error = law_error(verifier, case, batched)
                if not error <= tolerance:
                    method = "verify_batch" if batched else "verify"
                    raise AssertionError(
                        f"{verifier.info.name}.{method} is off by {error:.1e} on the case {case.name!r} "
                        f"(length {length}, vocabulary {size}, seed {seed})"
                    )


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


def _admitted_by_companion(q: Laws, c: Laws, threshold: float = 0.7) -> dict[Context, Tensor]:
    """Admit the tokens whose signal A = min(1, c / q) passes a threshold; never all of them, so every place cuts."""
    admitted = {}
    for context, law in q.items():
        signal = (c[context] / law).clamp(max=1)
        flags = signal > threshold
        flags[signal.argmin()] = False
        admitted[context] = flags
    return admitted


def _decide_tree(verifier: Verifier, tokens: Context, q: Tensor, p: Tensor) -> Callable[[Draws], tuple[Context, int]]:
    tree = DraftTree.chain(torch.tensor(tokens, dtype=torch.long), q)

    def decide(draws: Draws) -> tuple[Context, int]:
        verdict = verifier.verify(tree, p, draws)
        return tuple(tree.tokens[verdict.path].tolist()), int(verdict.next_token)

    return decide


def _decide_batch(verifier: Verifier, tokens: Context, q: Tensor, p: Tensor) -> Callable[[Draws], tuple[Context, int]]:
    drafts = DraftBatch(torch.tensor([tokens], dtype=torch.long), (len(tokens),), q[None, :-1])

    def decide(draws: Draws) -> tuple[Context, int]:
        verdict = verifier.verify_batch(drafts, p[None], draws)
        return tokens[: int(verdict.accepted)], int(verdict.next_token)

    return decide


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def _index(size: int, generator: torch.Generator) -> int:
    return int(torch.randint(size, (), generator=generator))
