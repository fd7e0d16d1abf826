"""Scores, logits, hidden states and attentions of committed tokens, in the host's output format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .runner import ForwardOutput

Layers = tuple[Tensor, ...]


class Recorder:
    """Keeps what plain generation would have returned for the tokens that were committed.

    The host returns one entry per generated token, each over the whole batch. Rows commit their tokens at different
    steps, so values are kept by (token, row) and put together at the end. Where a row had already ended, plain
    generation runs the model on padding; here the entries are zeros.

    Args:
        batch_size, prompt_length: of the batch as generate expanded it.
        scores, logits, hidden_states, attentions: what is wanted.
    """

    def __init__(
        self, batch_size: int, prompt_length: int, scores: bool, logits: bool, hidden_states: bool, attentions: bool
    ) -> None:
        self.batch_size, self.prompt_length = batch_size, prompt_length
        self._scores: list[dict[int, Tensor]] | None = [] if scores else None
        self._logits: list[dict[int, Tensor]] | None = [] if logits else None
        self._hidden: list[dict[int, Layers]] | None = [] if hidden_states else None
        self._attentions: list[dict[int, Layers]] | None = [] if attentions else None

    @property
    def wants_scores(self) -> bool:
        """Whether processed scores are kept."""
        return self._scores is not None

    @property
    def is_active(self) -> bool:
        """Whether anything is kept."""
        return any(kept is not None for kept in (self._scores, self._logits, self._hidden, self._attentions))

    def step(
        self, rows: list[int], lengths: list[int], counts: list[int], output: ForwardOutput, scores: Tensor | None
    ) -> None:
        """Keep the first counts[i] positions of active row i, which had lengths[i] tokens before the step."""
        for place, (row, length, count) in enumerate(zip(rows, lengths, counts, strict=True)):
            for position in range(count):
                token = length + position - self.prompt_length
                if self._scores is not None and scores is not None:
                    _put(self._scores, token, row, scores[place, position].clone())
                if self._logits is not None:
                    _put(self._logits, token, row, output.logits[place, position].to(torch.float32, copy=True))
                if self._hidden is not None and output.hidden_states is not None:
                    states = tuple(layer[place, position].clone() for layer in output.hidden_states)
                    _put(self._hidden, token, row, states)
                if self._attentions is not None and output.attentions is not None:
                    seen = length + position
                    weights = tuple(layer[place, :, position, :seen].clone() for layer in output.attentions)
                    _put(self._attentions, token, row, weights)

    def trim(self, rows: list[int], lengths: list[int]) -> None:
        """Forget what was kept of row rows[i] behind lengths[i] tokens."""
        for entries in (self._scores, self._logits, self._hidden, self._attentions):
            for row, length in zip(rows, lengths, strict=True):
                for entry in (entries or [])[length - self.prompt_length :]:
                    entry.pop(row, None)
            while entries and not entries[-1]:
                entries.pop()

    def scores_until(self, length: int) -> Layers | None:
        """The scores as a criterion gets them once rows have `length` tokens."""
        return None if self._scores is None else self._stack(self._scores[: length - self.prompt_length])

    def result(self, prompt: list[ForwardOutput]) -> dict[str, Any]:
        """The output fields `scores`, `logits`, `hidden_states`, `attentions`; None where not wanted.

        The host's first entry of the last two covers the prompt; `prompt` has its parts up to the last prompt token.
        """
        self._prompt = prompt
        return {
            "scores": None if self._scores is None else self._stack(self._scores),
            "logits": None if self._logits is None else self._stack(self._logits),
            "hidden_states": None if self._hidden is None else self._layers(self._hidden, self._hidden_entry),
            "attentions": None if self._attentions is None else self._layers(self._attentions, self._attention_entry),
        }

    def _stack(self, entries: list[dict[int, Tensor]]) -> Layers:
        return tuple(self._rows(entry) for entry in entries)

    def _rows(self, entry: dict[int, Tensor]) -> Tensor:
        like = next(iter(entry.values()))
        return torch.stack([entry.get(row, torch.zeros_like(like)) for row in range(self.batch_size)])

    def _layers(self, entries: list[dict[int, Layers]], build: Any) -> tuple[Layers, ...]:
        count = len(next(iter(entries[0].values()))) if entries else 0
        return tuple(
            tuple(
                build(token, layer, self._rows({row: layers[layer] for row, layers in entry.items()}))
                for layer in range(count)
            )
            for token, entry in enumerate(entries)
        )

    def _hidden_entry(self, token: int, layer: int, states: Tensor) -> Tensor:
        parts = [output.hidden_states[layer] for output in self._prompt if output.hidden_states] if token == 0 else []
        return torch.cat([*parts, states[:, None]], dim=1)

    def _attention_entry(self, token: int, layer: int, weights: Tensor) -> Tensor:
        parts = [output.attentions[layer] for output in self._prompt if output.attentions] if token == 0 else []
        slots = self.prompt_length + token
        rows = [torch.nn.functional.pad(part, (0, slots - part.shape[-1])) for part in parts]
        return torch.cat([*rows, weights[:, :, None]], dim=2)


def _put(entries: list[dict[int, Any]], token: int, row: int, value: Any) -> None:
    while len(entries) <= token:
        entries.append({})
    entries[token][row] = value
