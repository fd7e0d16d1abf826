"""The same draft length in every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FixedLength:
    """Drafts `num_draft_tokens` tokens per row and verifies all of them.

    Only the end of a row shortens its draft: tokens that could not be committed are not drafted. That depends on
    lengths alone, not on any drawn token, so it leaves the output law as it is.
    """

    num_draft_tokens: int

    def draft_lengths(self, room: list[int]) -> list[int]:
        """Tokens to draft for each active row, which has space for room[i] of them."""
        return [min(self.num_draft_tokens, space) for space in room]
