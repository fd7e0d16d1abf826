"""The costs of a step, put together once for each batch size and stretch of context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .cost import CostModel

STRETCH = 64  # tokens of context that are priced alike


@dataclass(frozen=True, eq=False)
class StepCosts:
    """Seconds of the parts of a step, for so many rows.

    Attributes:
        rows: active rows.
        draft: of one pass of the draft over one token per row; 0 where drafts are free.
        verify: (rows·longest + 1,) float64, of the target's pass by the number of draft tokens in it, over all rows.
        companion: the same for the companion; None without one.
    """

    rows: int
    draft: float
    verify: Tensor
    companion: Tensor | None

    @property
    def plain_rate(self) -> float:
        """Tokens per second without drafts."""
        return self.rows / float(self.verify[0])

    def seconds(self, passes: int, verified: int, asked: int | None = None) -> float:
        """Of a step of `passes` draft passes that verifies so many draft tokens, having asked a companion about some.

        Args:
            passes: of the draft.
            verified: draft tokens in the target's pass, over all rows.
            asked: draft tokens that the companion read; None if it was left alone.
        """
        beside = 0.0 if asked is None or self.companion is None else float(self.companion[asked])
        return passes * self.draft + beside + float(self.verify[verified])


class CallCosts:
    """What steps of up to `longest` draft tokens per row cost in one call.

    Args:
        costs: measured forwards.
        longest: draft tokens per row and step, at most.
    """

    def __init__(self, costs: CostModel, longest: int) -> None:
        self.costs, self.longest = costs, longest
        self._known: dict[tuple[int, int], StepCosts] = {}

    def step(self, rows: int, context: int) -> StepCosts:
        """The costs for so many rows, of up to `context` tokens each."""
        key = (rows, context // STRETCH)
        if key not in self._known:
            most = rows * self.longest
            roles = self.costs.roles
            self._known[key] = StepCosts(
                rows,
                self.costs.latency(rows, rows, context, "draft") if "draft" in roles else 0.0,
                self.costs.verify_table(rows, most, context),
                self.costs.verify_table(rows, most, context, "companion") if "companion" in roles else None,
            )
        return self._known[key]

    def fixed_seconds(self, rows: int, context: int) -> Tensor:
        """(longest + 1,) float64 seconds of a step by the number of tokens that every row drafts and verifies."""
        step, lengths = self.step(rows, context), torch.arange(self.longest + 1)
        return step.draft * lengths.double() + step.verify[rows * lengths]
