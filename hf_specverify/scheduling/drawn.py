"""Scheduling by signals that look at the drawn token, with the correction that keeps sampling exact.

Whether token x_i is verified may depend on x_i itself if the cut is treated as the draw of a null token: with v_i(x) ∈
{0, 1} saying whether x *would have been* admitted at i, the draft's law there is q·v, the missing mass that of a token
which the target never emits (see `DraftTree`). Token and block verification are lossless for every such law.

This needs v_i to be settled before x_i is looked at. For one row it is: the threshold of position i is made of earlier
positions. In a batch it holds if the *order* in which positions are considered does not look at their tokens either.
Then the whole step is one sequence of draws, each from a law that was fixed before it. The output of a row changes its
conditional law only when a token of that row is revealed, no two rows are revealed at once, and so the joint law of the
rows is the product of the targets'. In the order of `schedule_batch`, by survivals that include the drawn token's own
signal, v_i would depend on the other rows' tokens and theirs on x_i: each row alone can be corrected, the rows together
can not.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
from torch import Tensor

from .goodput import Latency, _check_positions, latency_table, row_weights


@dataclass(frozen=True, eq=False)
class DrawnSchedule:
    """What the batch verifies, and what is needed to correct for having looked.

    Attributes:
        lengths: (B,) long, draft tokens of each row to verify.
        required: (B, L) float64, the predicted acceptance above which a token is admitted at a position: v_i(x) = 1 ⇔
            P̂(accept | signals of x) > required; infinite where the position was not looked at.
        cut: (B,) bool, whether a row ends at a token that was looked at and not admitted. There, and at all earlier
            positions, the law that the verifier gets is q·v (`admitted`).
    """

    lengths: Tensor
    required: Tensor
    cut: Tensor


def schedule_drawn(
    predicted: Tensor,
    latency: Latency,
    drafted: Tensor | None = None,
    before: Tensor | None = None,
    weights: Tensor | None = None,
) -> DrawnSchedule:
    """Add positions across rows as long as each raises the batch's goodput, by predictions that look at the token.

    The row whose next position promises most, by what is known before its token is looked at, is considered next. With
    k positions admitted, τ = B + Σ of their survivals and surv the row's own up to here, both times the row's weight,
    the position is admitted if it raises goodput: surv·P̂ > τ·(latency(k + 1) / latency(k) - 1). A row ends at its first
    position that does not; the others go on. For one row this is the rule of `goodput_length`. Ties go by row.

    It walks over positions in host memory, which at these sizes is faster than tensor operations; lengths are needed
    there anyway.

    Args:
        predicted: (B, L), acceptance predicted for the drawn tokens.
        latency: seconds of the forward by the number of draft tokens in it, over all rows: 0 … B·L.
        drafted: (B,) long, how many positions each row has, not chosen by looking at tokens of other rows in this step;
            None means L.
        before: (B, L), acceptance predicted without the token drawn at the position, which only decides the order; None
            means 1.
        weights: (B,) positive, what the tokens of each row are worth, B in all, from earlier steps; None means 1.

    Raises:
        ValueError: if an argument is not as described.
    """
    rows, longest = _check_positions("predicted", predicted, drafted)
    if before is not None and before.shape != predicted.shape:
        raise ValueError(f"before must have the shape {tuple(predicted.shape)}, got {tuple(before.shape)}")
    table = latency_table(latency, rows * longest).tolist()
    room = [longest] * rows if drafted is None else drafted.tolist()
    chances = predicted.tolist()
    promised = [[1.0] * longest] * rows if before is None else before.tolist()
    lengths, cut, survival = [0] * rows, [False] * rows, row_weights(weights, rows).tolist()
    required = [[float("inf")] * longest for _ in range(rows)]
    queue = [(-survival[row] * promised[row][0], row) for row in range(rows) if room[row] > 0]
    heapq.heapify(queue)
    tokens, expected = 0, float(rows)
    while queue:
        _, row = heapq.heappop(queue)
        place = lengths[row]
        threshold = expected * (table[tokens + 1] / table[tokens] - 1)
        required[row][place] = threshold / survival[row] if survival[row] > 0 else float("inf")
        if not chances[row][place] > required[row][place]:
            cut[row] = True
            continue
        lengths[row], tokens = place + 1, tokens + 1
        survival[row] *= chances[row][place]
        expected += survival[row]
        if lengths[row] < room[row]:
            heapq.heappush(queue, (-survival[row] * promised[row][place + 1], row))
    device = predicted.device
    return DrawnSchedule(
        torch.tensor(lengths, device=device),
        torch.tensor(required, dtype=torch.float64, device=device).reshape(rows, longest),
        torch.tensor(cut, dtype=torch.bool, device=device),
    )


def admitted(predicted: Tensor, required: Tensor) -> Tensor:
    """v: which tokens would have been admitted, had they been drawn.

    The prediction for the drawn token must be the one that the schedule got, to the last bit.

    Args:
        predicted: (…, V), acceptance predicted for every token of the vocabulary.
        required: (…), of `DrawnSchedule`.

    Returns:
        (…, V) bool, to be multiplied into the rows of q of the verified positions, and of the one where a row was cut.

    Raises:
        ValueError: if the shapes disagree.
    """
    if predicted.shape[:-1] != required.shape:
        raise ValueError(f"required must have the shape {tuple(predicted.shape[:-1])}, got {tuple(required.shape)}")
    return predicted > required.double()[..., None]  # compared in float64, as the schedule did
