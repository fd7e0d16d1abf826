"""The exact joint law of what several rows put out under a schedule, on toy models."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from hf_specverify.drafting.tree import DraftTree
from hf_specverify.testing import Case, contexts, enumerate_outcomes, target_law
from hf_specverify.verification import get_verifier

Row = tuple[Case, dict[tuple[int, ...], Tensor]]
Cut = tuple[int, Tensor]
"""How many tokens are verified, and which tokens (n + 1, V) are taken to be admitted at each position and behind."""


def toy_rows(seed: int, count: int, length: int, size: int) -> list[Row]:
    """Rows with the acceptance (V,) predicted for every token after every context: from A and S of a toy companion."""
    generator = torch.Generator().manual_seed(seed)

    def table() -> dict[tuple[int, ...], Tensor]:
        weights = {
            x: torch.rand(size, generator=generator, dtype=torch.float64) ** 2 + 0.02 for x in contexts(length, size)
        }
        return {context: law / law.sum() for context, law in weights.items()}

    rows: list[Row] = []
    for _ in range(count):
        p, q, c = table(), table(), table()
        predicted = {}
        for context in contexts(length - 1, size):
            overlap = torch.minimum(q[context], c[context]).sum()
            signal = (c[context] / q[context]).clamp(max=1)
            predicted[context] = 0.05 + 0.9 * (0.7 * signal + 0.3 * overlap)
        rows.append((Case("toy", length, p, q, {}), predicted))
    return rows


def drafts(case: Case) -> list[tuple[float, tuple[int, ...]]]:
    size = len(case.p[()])
    blocks = []
    for block in itertools.product(range(size), repeat=case.length):
        chance = 1.0
        for i, token in enumerate(block):
            chance *= float(case.q[block[:i]][token])
        blocks.append((chance, block))
    return blocks


def row_law(verifier: str, row: Row, block: tuple[int, ...], cut: Cut) -> Tensor:
    """The law of the L + 1 next tokens of one row, given its draft and how it was cut."""
    case, (length, flags) = row[0], cut
    laws = [
        case.q[block[:i]] * flags[i] if i < case.length else torch.zeros_like(case.p[()]) for i in range(length + 1)
    ]
    tree = DraftTree.chain(torch.tensor(block[:length], dtype=torch.long), torch.stack(laws))
    p = torch.stack([case.p[block[:i]] for i in range(length + 1)])
    law = torch.zeros_like(target_law(case))
    for chance, verdict in enumerate_outcomes(lambda draws: get_verifier(verifier).verify(tree, p, draws)):
        output = (*tree.tokens[verdict.path].tolist(), int(verdict.next_token))
        law[output] += chance * target_law(case, output)
    return law


Scheduler = Callable[[list[Row], list[tuple[int, ...]]], list[Cut]]


def joint_error(rows: list[Row], schedule: Scheduler, verifier: str) -> tuple[float, float]:
    """Largest errors of the joint law of all rows, and of the laws of single rows."""
    joint: Tensor | float = 0.0
    targets = [target_law(case).flatten() for case, _ in rows]
    for drawn in itertools.product(*(drafts(case) for case, _ in rows)):
        blocks = [block for _, block in drawn]
        law = torch.ones(1, dtype=torch.float64)
        for row, block, cut, (chance, _) in zip(rows, blocks, schedule(rows, blocks), drawn, strict=True):
            law = torch.outer(law, chance * row_law(verifier, row, block, cut).flatten()).flatten()
        joint = joint + law
    assert isinstance(joint, Tensor)
    product = torch.ones(1, dtype=torch.float64)
    for target in targets:
        product = torch.outer(product, target).flatten()
    shaped = joint.view([len(target) for target in targets])
    singles = [
        float((shaped.sum(dim=[d for d in range(len(rows)) if d != i]) - target).abs().max())
        for i, target in enumerate(targets)
    ]
    return float((joint - product).abs().max()), max(singles)


def vocabulary_predictions(rows: list[Row], blocks: list[tuple[int, ...]]) -> Tensor:
    """(B, L, V)"""
    return torch.stack(
        [
            torch.stack([row[1][block[:i]] for i in range(row[0].length)])
            for row, block in zip(rows, blocks, strict=True)
        ]
    )


def at_drawn(predictions: Tensor, blocks: list[tuple[int, ...]]) -> Tensor:
    return predictions.gather(2, torch.tensor(blocks)[..., None]).squeeze(2)
