"""When to stop drafting: where a draft token is not nearly free, that saves more than cutting what is verified."""

from __future__ import annotations

import torch
from torch import Tensor

from .goodput import row_weights


def worth_drafting(
    survival: Tensor,
    predicted: Tensor,
    *,
    rate: float,
    extra_seconds: Tensor,
    drafting: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Which rows should draft one more position.

    If n rows do, the step is expected to commit Σ survival·predicted of them more tokens and to take extra_seconds[n]
    longer, in which the batch would otherwise make rate·extra_seconds[n] tokens in steps to come. The n rows that
    promise most go on for the n of the largest difference; none does where it is not positive. (The step's own tokens
    per second would be the wrong price: a step that has begun well would stop too early, a bad one go on.)

    The rule lags by one token: what it looks at has been drawn and is kept, and the position that it decides on has not
    been drawn. So it is exact with any signal, as long as no token that it has looked at is cut off afterwards. If one
    is, the schedules of verification stay exact for one row only: in a batch the draft length of one row would depend
    on tokens of another whose admission, which the length has a part in, is still open. This is so even for signals
    that do not look at the drawn token of their own position. Deterministic drafts and greedy targets don't mind.

    Args:
        survival: (B,), Π of the acceptances predicted for what each row has drafted.
        predicted: (B,), acceptance predicted for its next position.
        rate: tokens per second of the batch in the long run, from earlier steps.
        extra_seconds: (B + 1,), the time that n more positions cost: one more draft pass, and n tokens in the target's
            forward; entry 0 is not used.
        drafting: (B,) bool, which rows are still drafting; None means all.
        weights: (B,) positive, what the tokens of each row are worth, B in all, from earlier steps; None means 1.

    Returns:
        (B,) bool.

    Raises:
        ValueError: if an argument is not as described.
    """
    rows = survival.shape[0]
    if survival.shape != (rows,) or predicted.shape != survival.shape:
        raise ValueError(
            f"survival and predicted must have one shape (B,), got {tuple(survival.shape)}, {tuple(predicted.shape)}"
        )
    if extra_seconds.shape != (rows + 1,) or not bool((extra_seconds[1:] >= 0).all()):
        raise ValueError(f"extra_seconds must be {rows + 1} times of at least 0, got {extra_seconds.tolist()}")
    if not rate > 0:
        raise ValueError(f"rate must be positive, got {rate}")
    gain = row_weights(weights, rows).to(survival.device) * survival.double() * predicted.double()
    if drafting is not None:
        gain = gain.masked_fill(~drafting, 0)
    ranked, order = gain.sort(descending=True, stable=True)
    profit = ranked.cumsum(dim=0) - rate * extra_seconds[1:].double().to(gain.device)
    if not rows or not bool(profit.amax() > 0):
        return torch.zeros(rows, dtype=torch.bool, device=gain.device)
    goes_on = (torch.arange(rows, device=gain.device) <= profit.argmax()) & (ranked > 0)
    return torch.zeros_like(goes_on).scatter_(0, order, goes_on)
