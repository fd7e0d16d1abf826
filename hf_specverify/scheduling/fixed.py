"""The same draft length in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .schedule import Schedule

if TYPE_CHECKING:
    from ..decoding.state import BatchState
    from .cost import CostModel


class FixedLength(Schedule):
    """Drafts `num_draft_tokens` tokens per row and verifies all of them.

    Only the end of a row shortens its draft: tokens that could not be committed are not drafted. That depends on
    lengths alone, not on any drawn token, so it leaves the output law as it is.

    Args:
        num_draft_tokens: per row and step.
        costs: for the report; None leaves out what depends on them.
    """

    def __init__(self, num_draft_tokens: int, costs: CostModel | None = None) -> None:
        self.num_draft_tokens, self.costs = num_draft_tokens, costs

    def draft_lengths(self, room: list[int], state: BatchState | None = None) -> list[int]:
        """Tokens to draft for each active row, which has space for room[i] of them."""
        return [min(self.num_draft_tokens, space) for space in room]
