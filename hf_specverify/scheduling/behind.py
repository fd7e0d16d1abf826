"""Which rows a call waits for: a token is worth more where it lets the call end sooner."""

from __future__ import annotations

import torch
from torch import Tensor

from .call_costs import CallCosts

KEEP = 1 - 1 / 16  # a step's weight beside the next one's, in what a row makes of a step
SHARED_STEPS = 4.0  # steps for which a row is taken to be like the others
SHARPNESS = 0.1  # rows whose ends lie closer than this share of the steps left end together
LEAST_LEFT = 32  # tokens that a row is expected to get yet, its limit apart


class RowsBehind:
    """Weighs the tokens of a batch whose rows are all waited for.

    A step costs a + b·B seconds for B rows. A token less to go shortens a row by part of a step: b seconds of it if the
    others go on, and a + b if the call ends sooner. So a row's tokens weigh 1 - s + s·B·π, with s = a / (a + b·B) and π
    its share in being the last: softmax(R / τ) of the steps R that rows are expected to need yet, τ a tenth of their
    mean. The weights sum to B; rows that are alike weigh 1 each, and then goodput is tokens per second. Where an answer
    ends is not known, so all rows are taken to grow as long again as the longest is, within their limits.

    It goes by earlier steps only.

    Args:
        prices: what the call's steps cost.
    """

    def __init__(self, prices: CallCosts) -> None:
        self.prices = prices
        self._tokens: dict[int, float] = {}
        self._steps: dict[int, float] = {}

    def weights(self, rows: list[int], generated: list[int], room: list[int], context: int) -> Tensor:
        """(A,) float64, what a token of each active row is worth.

        Args:
            rows: the active rows, by their index in the batch.
            generated: tokens that each has got.
            room: tokens that it may get yet, beside the next one.
            context: tokens of the longest row.
        """
        count = len(rows)
        if count == 1:
            return torch.ones(1, dtype=torch.float64)
        longest = max(generated) + max(*generated, LEAST_LEFT)
        left = [min(longest - had, space + 1) for had, space in zip(generated, room, strict=True)]
        steps = torch.tensor(left, dtype=torch.float64).clamp(min=1) / self.tokens_per_step(rows)
        last = torch.softmax(steps / (SHARPNESS * float(steps.mean()) + 1), dim=0)
        alone, together = (float(self.prices.step(n, context).verify[0]) for n in (1, count))
        shared = min(1.0, max(0.0, (alone - (together - alone) / (count - 1)) / together))
        return 1 - shared + shared * count * last

    def tokens_per_step(self, rows: list[int]) -> Tensor:
        """(A,) float64, what each row makes of a step; one that little is known of is taken to be like the others."""
        tokens = torch.tensor([self._tokens.get(row, 0.0) for row in rows], dtype=torch.float64)
        steps = torch.tensor([self._steps.get(row, 0.0) for row in rows], dtype=torch.float64)
        together = (float(tokens.sum()) + 1) / (float(steps.sum()) + 1)
        return (tokens + SHARED_STEPS * together) / (steps + SHARED_STEPS)

    def learn(self, rows: list[int], tokens: Tensor, counts: list[bool]) -> None:
        """Take a step in.

        Args:
            rows: the active rows.
            tokens: (A,) what each was expected to get.
            counts: which rows it says something of; not of one whose drafts were left out.
        """
        for row, value, is_told in zip(rows, tokens.tolist(), counts, strict=True):
            if is_told:
                self._tokens[row] = KEEP * self._tokens.get(row, 0.0) + value
                self._steps[row] = KEEP * self._steps.get(row, 0.0) + 1
