"""A model, its cache, and the rows of a batch that it serves: the only place where models are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .masks import TreeRegion, logical_places
from .timing import Stopwatch
from .traits import ModelTraits, input_device


@dataclass(frozen=True)
class ForwardOutput:
    """What a forward over a block of n tokens gave.

    logits: (B, n, V), or (B, 1, V) where only the last valid token of each row was asked for; the model's dtype.
    hidden_states: per layer (B, n, H), or None. attentions: per layer (B, heads, n, slots), or None; slot j is token
    j of the left-padded row.
    """

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass(frozen=True)
class OutputFlags:
    """Which extra outputs are wanted: by the user all hidden states or attentions, by the drafter some layers' states.

    Where `hidden_states` is not set, the runner drops those that are not among `layers` after each forward.
    """

    hidden_states: bool = False
    attentions: bool = False
    layers: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything extra is wanted."""
        return self.hidden_states or self.attentions or bool(self.layers)

    def as_arguments(self) -> dict[str, bool]:
        """Forward arguments; absent flags are not passed, so models without them still work."""
        states = self.hidden_states or bool(self.layers)
        wanted = {"output_hidden_states": states, "output_attentions": self.attentions}
        return {name: True for name, on in wanted.items() if on}

    def thinned(self, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Of all states of a forward, those that are kept."""
        return states if self.hidden_states else tuple(states[layer] for layer in self.layers)

    def for_drafter(self, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Of the states that were kept, those of `layers`."""
        return tuple(states[layer] for layer in self.layers) if self.hidden_states else states


class Runner(ABC):
    """Feeds tokens of a ragged batch to one model and keeps its cache in step with what was committed.

    Tokens are counted as in the left-padded batch: `lengths[b]` tokens of row b, its padding included, are cached.
    A forward appends, `rewind` takes back, `select` drops rows; so a rejected draft leaves no trace.

    Args:
        model: a Transformers causal language model; it is called, never changed.
        traits: its traits.
        stopwatch: gets the seconds of the forwards.
        phase: the stopwatch's name for them.
        flags: extra outputs wanted.
    """

    layout: str
    # Set by the probe for a model on which they were seen to be exact.
    takes_trees = False
    packs = False

    def __init__(
        self,
        model: Any,
        traits: ModelTraits,
        stopwatch: Stopwatch,
        phase: str,
        flags: OutputFlags | None = None,
    ) -> None:
        self.model, self.traits = model, traits
        self.stopwatch, self.phase = stopwatch, phase
        self.flags = flags or OutputFlags()
        self.device = input_device(model)
        self.lengths: list[int] = []
        self.prompt_outputs: list[ForwardOutput] = []

    @abstractmethod
    def prefill(self, tokens: Tensor, valid: Tensor, prompt_valid: Tensor, chunk: int | None) -> None:
        """Take the first tokens of every row; they are cached by the end of the first forward.

        What extra outputs the prompt gives is then in `prompt_outputs`, in order.

        Args:
            tokens: (B, n) left-padded ids.
            valid: (B, n) bool, False for padding.
            prompt_valid: (B, T) the mask of the whole prompt, of which `valid` is the first part.
            chunk: tokens per forward, or None for all at once.
        """

    @abstractmethod
    def forward(
        self, tokens: Tensor, counts: list[int], last_only: bool = False, region: TreeRegion | None = None
    ) -> ForwardOutput:
        """Feed (B, n) tokens, of which the first counts[b] of row b are real; they follow what is cached.

        With a region (only where `takes_trees`) the tokens are nodes of a tree, whose earlier nodes are cached last.
        """

    def keep(self, base: list[int], nodes: Tensor) -> None:
        """Move nodes of a tree to the front of its region: node nodes[b, i] to the i-th slot behind base[b] tokens.

        Args:
            base: tokens of each row before the region.
            nodes: (B, n) long, ascending along a path, in slots of the region.
        """
        raise NotImplementedError(f"{type(self).__name__} has no trees")

    @abstractmethod
    def rewind(self, lengths: list[int]) -> None:
        """Forget what lies behind lengths[b] tokens in each row."""

    @abstractmethod
    def select(self, rows: list[int]) -> None:
        """Keep the given rows, by their current place in the batch."""

    def call(self, **arguments: Any) -> Any:
        """One model forward, timed."""
        with self.stopwatch.measure(self.phase):
            raw = self.model(**arguments, **self.flags.as_arguments(), use_cache=True, return_dict=True)
        if self.flags.layers:
            if raw.hidden_states is None:
                raise ValueError(f"{type(self.model).__name__} gives no hidden states, which the drafter reads")
            raw.hidden_states = self.flags.thinned(raw.hidden_states)
        return raw

    def positions(self, starts: Tensor, padding: Tensor, width: int, region: TreeRegion | None = None) -> Tensor:
        """(B, width) position ids of a block that begins at token starts[b] of row b."""
        return self.within_table(logical_places(starts, width, region) - padding[:, None])

    def within_table(self, positions: Tensor) -> Tensor:
        """Positions inside a learned table, which only filler can leave."""
        limit = self.traits.max_positions
        return positions.clamp(min=0, max=None if limit is None else limit - 1)

    def optional_arguments(self, position_ids: Tensor, keep: int | Tensor) -> dict[str, Any]:
        """`position_ids` and `logits_to_keep`, where the forward takes them."""
        arguments: dict[str, Any] = {}
        if self.traits.takes_position_ids:
            arguments["position_ids"] = position_ids
        if self.traits.takes_logits_to_keep:
            arguments["logits_to_keep"] = keep
        return arguments

    def last_positions(self, counts: list[int], width: int) -> int | Tensor:
        """`logits_to_keep` for the last real token of each row: an int where all rows are full."""
        if all(count == width for count in counts):
            return 1
        return torch.tensor(counts, device=self.device)[:, None] - 1

    def pick_last(self, logits: Tensor, keep: int | Tensor) -> Tensor:
        """(B, 1, V) of the last real tokens, for models whose forward could not be told."""
        if self.traits.takes_logits_to_keep:
            return logits
        return logits[:, -1:] if isinstance(keep, int) else torch.take_along_dim(logits, keep[..., None], dim=1)


def prefill_positions(valid: Tensor) -> Tensor:
    """Position ids of a left-padded prompt, as the host counts them."""
    return (valid.long().cumsum(-1) - 1).clamp_(min=0)


def spans(length: int, chunk: int | None) -> list[tuple[int, int]]:
    """(start, stop) of the prefill chunks of `length` tokens."""
    step = chunk or max(length, 1)
    return [(start, min(start + step, length)) for start in range(0, length, step)]
