"""A feature head at work on one call: what it has seen of the target, and its cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...decoding.masks import TreeRegion, logical_places, visible_slots
from ...decoding.row_cache import RowCache
from ...decoding.row_runner import INITIAL_ROOM
from ...decoding.runner import spans
from ...decoding.state import BatchState
from ...decoding.timing import Stopwatch
from ...decoding.traits import AttentionPattern
from ..trimmed import UNSCORED
from .acceptance import AcceptanceHead
from .model import HeadModel


class HeadReader:
    """A head's cache in step with what the rows have committed; it is a `Reader`.

    Place t of a row, its padding included, is read with token t + 1 and the target's features at token t, so what was
    committed can be read up to the last token but one, which is where the features end. Drafted places stand behind
    them until the target's features replace them; nothing drafted is kept.

    Args:
        head: the head, with embeddings and scoring rows.
        stopwatch: gets the seconds of its forwards.
        chunk: places per forward, or None.
        phase: what they count as.
        acceptance: gives the signal `expected`; None: there is none.
    """

    takes_trees = True

    def __init__(
        self,
        head: HeadModel,
        stopwatch: Stopwatch,
        chunk: int | None = None,
        phase: str = "draft",
        acceptance: AcceptanceHead | None = None,
    ) -> None:
        self.head, self.acceptance, self.device = head, acceptance, head.device
        self.vocabulary = head.config.vocabulary
        self.stopwatch, self.chunk, self.phase = stopwatch, chunk, phase
        self.lengths: list[int] = []  # places read with features, by row
        self.ends: list[int] = []  # places in the cache, drafted ones included
        self.pending: list[Tensor] = []  # by row, (n, features): seen and still to be read
        self.seen: Sequence[Tensor] = ()
        self.hidden = torch.empty(0, device=self.device)  # (A, F, H) fed back for the places read last
        self.scored = self.hidden  # (A, F, H) what their logits are made of

    @property
    def is_ready(self) -> bool:
        """Whether the target has read the prompt."""
        return bool(self.lengths)

    def see(self, states: Sequence[Tensor], prompt: Sequence[Sequence[Tensor]]) -> None:
        """Remember the target's states until it is known how many of them count."""
        self.seen = states
        if self.is_ready:
            return
        # A prompt of one token has nothing before its last.
        parts = [self._side_by_side(part) for part in prompt] or [self._side_by_side(states)[:, :0]]
        self.pending = list(torch.cat(parts, dim=1))

    def _side_by_side(self, states: Sequence[Tensor]) -> Tensor:
        """(A, n, features) of a place's states."""
        return torch.cat([layer.to(self.device) for layer in states], dim=-1)

    def take_back(self, state: BatchState) -> None:
        """Put the features of committed tokens where they are read from; drafted places are forgotten."""
        if not self.is_ready:
            self._begin(state)
        features = self._side_by_side(self.seen)
        for place, (length, read) in enumerate(zip(state.lengths, self.lengths, strict=True)):
            known = self.pending[place]
            count = length - 1 - read - len(known)
            self.pending[place] = torch.cat([known, features[place, :count]]) if len(known) else features[place, :count]
        self.seen, self.ends = (), list(self.lengths)

    def _begin(self, state: BatchState) -> None:
        self.prompt_valid = state.prompt_valid[state.row_index].to(self.device)
        self.padding = self.prompt_valid.shape[1] - self.prompt_valid.sum(1)
        self.cache = RowCache(self.prompt_valid.shape[1] + INITIAL_ROOM, len(state.rows))
        self.lengths = [0] * len(state.rows)

    def catch_up(self, state: BatchState) -> Tensor:
        """Read the committed places that are pending; (A, V) logits of the next token."""
        tokens, counts = state.tail([length + 1 for length in self.lengths])
        features = pad_sequence(self.pending, batch_first=True).to(self.head.dtype)
        with self.stopwatch.measure(self.phase):
            hidden = self.head.fuse(features)
        fed_back, normed = [], []
        for start, stop in spans(tokens.shape[1], self.chunk):
            parts = self._read(tokens[:, start:stop].to(self.device), hidden[:, start:stop])
            fed_back.append(parts[0])
            normed.append(parts[1])
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        self.ends = list(self.lengths)
        self.pending = [features[place, :0] for place in range(len(counts))]
        last = torch.tensor(counts, device=self.device)[:, None, None] - 1
        self.hidden = torch.take_along_dim(torch.cat(fed_back, dim=1), last, dim=1)
        return self._logits(torch.take_along_dim(torch.cat(normed, dim=1), last, dim=1))[:, 0]

    def feed(self, tokens: Tensor) -> Tensor:
        """Read one more token of each row with what the head gave back; (A, V) logits."""
        self.hidden, normed = self._read(tokens, self.hidden)
        return self._logits(normed)[:, 0]

    def signals(self, names: Sequence[str]) -> dict[str, Tensor]:
        """(A,) `expected` at the place scored last, if it is among the names."""
        if self.acceptance is None or "expected" not in names:
            return {}
        with self.stopwatch.measure("draft"):
            return {"expected": self.acceptance(self.scored[:, 0])}

    def feed_nodes(self, tokens: Tensor, parents: Tensor, region: TreeRegion) -> Tensor:
        """Read nodes of a tree with what the head gave back at their parents; (A, F, V) logits."""
        self.hidden, normed = self._read(tokens, torch.take_along_dim(self.hidden, parents[..., None], dim=1), region)
        return self._logits(normed)

    def _read(self, tokens: Tensor, hidden: Tensor, region: TreeRegion | None = None) -> tuple[Tensor, Tensor]:
        """Read (A, n) places behind the last ones; what `HeadModel` gives."""
        width, total = tokens.shape[1], max(self.ends) + tokens.shape[1]
        starts = torch.tensor(self.ends, device=self.device)
        self.cache.plan.ragged(starts[:, None] + torch.arange(width, device=self.device), total)
        mask = visible_slots(self.prompt_valid, starts, width, total, AttentionPattern(), region)
        positions = (logical_places(starts, width, region) + 1 - self.padding[:, None]).clamp_(min=0)
        with self.stopwatch.measure(self.phase):
            outputs: tuple[Tensor, Tensor] = self.head(tokens, hidden, positions, mask[:, None], self.cache)
        self.ends = [end + width for end in self.ends]
        return outputs

    def _logits(self, normed: Tensor) -> Tensor:
        """(A, F, V) float32 scores; tokens outside the draft vocabulary get none."""
        self.scored = normed
        with self.stopwatch.measure(self.phase):
            scores = self.head.logits(normed).float()
        if self.head.config.draft_vocab_size == self.vocabulary:
            return scores
        whole = scores.new_full((*scores.shape[:-1], self.vocabulary), UNSCORED)
        return whole.index_copy_(-1, self.head.draft_ids, scores)

    def keep(self, base: list[int], chosen: list[list[int]]) -> None:
        """Nothing of a tree is kept: the target's features replace it."""

    def forget(self, base: list[int]) -> None:
        """Nothing drafted is kept."""

    def select(self, places: list[int]) -> None:
        """Keep the active rows at the given places."""
        index = torch.tensor(places, device=self.device)
        self.cache.select(index)
        self.prompt_valid, self.padding = self.prompt_valid[index], self.padding[index]
        self.lengths = [self.lengths[place] for place in places]
        self.ends = [self.ends[place] for place in places]
        self.pending = [self.pending[place] for place in places]
