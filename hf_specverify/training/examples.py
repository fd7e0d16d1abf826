"""The texts with their features, as batches in an order that depends on the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..drafting.kept_ids import choose_ids, special_ids
from ..drafting.vocabulary import vocabulary_size
from .settings import HeadTraining
from .store import Store
from .texts import unpack
from .unroll import Laws

_WINDOW = 16  # batches whose texts are sorted by length together, so that rows of a batch are of like length


@dataclass(frozen=True)
class Example:
    """Texts side by side.

    Attributes:
        tokens: (B, N - 1) long, the texts from their second token on.
        features: (B, N - 1, features) of the target, from the first token on.
        laws: of all N tokens.
    """

    tokens: Tensor
    features: Tensor
    laws: Laws


class Examples:
    """Reads texts from the files of features, which stay on disk.

    Args:
        store: the files. count: how many.
        draft_ids: (D,) the draft vocabulary. vocabulary: V, the target's.
        settings: batch size, seed, share held out.
        device: where batches go.
    """

    def __init__(
        self,
        store: Store,
        count: int,
        draft_ids: Tensor,
        vocabulary: int,
        settings: HeadTraining,
        device: torch.device,
    ) -> None:
        self.settings, self.device = settings, device
        self.files: list[Any] = [safe_open(store.path(number), framework="pt") for number in range(count)]
        self.place_of = torch.full((vocabulary,), -1)
        self.place_of[draft_ids] = torch.arange(len(draft_ids))
        texts: list[tuple[int, int]] = []  # file, place in it
        lengths: list[int] = []
        for number, file in enumerate(self.files):
            for name in file.keys():  # noqa: SIM118 - no mapping
                kind, _, place = name.partition(".")
                if kind == "ids":
                    texts.append((number, int(place)))
                    lengths.append(file.get_slice(name).get_shape()[0])
        order = sorted(range(len(texts)), key=lambda index: texts[index])
        self.texts, self.lengths = [texts[index] for index in order], [lengths[index] for index in order]
        generator = torch.Generator().manual_seed(settings.seed)
        shuffled = torch.randperm(len(texts), generator=generator).tolist()
        share = max(1, min(max(2, round(settings.held_out * len(texts))), len(texts) - 1))
        self.held_out, self.train = sorted(shuffled[:share]), sorted(shuffled[share:])

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch; the last one may be smaller."""
        return -(-len(self.train) // self.settings.batch_size)

    def batches_of_epoch(self, epoch: int) -> list[list[int]]:
        """The texts of every batch of an epoch."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        size = self.settings.batch_size
        order = [self.train[index] for index in torch.randperm(len(self.train), generator=generator).tolist()]
        windows = [order[begin : begin + _WINDOW * size] for begin in range(0, len(order), _WINDOW * size)]
        batches = []
        for window in windows:
            window.sort(key=lambda index: self.lengths[index])
            batches += [window[begin : begin + size] for begin in range(0, len(window), size)]
        return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]

    def unknown_to_the_head(self) -> Examples:
        """The held-out texts alone: every other one to learn from, the rest held out.

        On texts that a head was trained on it is right more often than elsewhere, and who learns its acceptance there
        expects too much. Of a single text there is nothing to hold out; it is both.
        """
        found = copy(self)
        found.train, found.held_out = self.held_out[::2], self.held_out[1::2] or self.held_out
        return found

    def held_out_batches(self) -> Iterator[Example]:
        """Those that are not trained on."""
        for begin in range(0, len(self.held_out), self.settings.batch_size):
            yield self.batch(self.held_out[begin : begin + self.settings.batch_size])

    def batch(self, texts: Sequence[int]) -> Example:
        """Read some texts."""
        rows = [self._text(index) for index in texts]
        columns = zip(*rows, strict=True)
        ids, states, tokens, chances, learn = (pad_sequence(list(column), batch_first=True) for column in columns)
        places = self.place_of[tokens.long()]
        laws = Laws(
            tokens=places.clamp(min=0).to(self.device),
            chances=(chances.float() * (places >= 0)).to(self.device),
            best=places[..., 0].to(self.device),
            learn=learn.to(self.device),
        )
        return Example(ids[:, 1:].to(self.device), states[:, :-1].to(self.device).float(), laws)

    def _text(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Ids, states, likeliest tokens, their probabilities, and after which tokens is learned."""
        number, place = self.texts[index]
        read = self.files[number].get_tensor
        ids, begin = read(f"ids.{place}"), int(read(f"begin.{place}"))
        learn = torch.arange(len(ids)) >= max(begin - 1, 0)
        learn[-1] = False  # no text follows
        return ids, read(f"states.{place}"), read(f"tokens.{place}"), read(f"chances.{place}"), learn


def count_draft_ids(target: Any, texts: Store, files: int, size: int) -> Tensor:
    """(D,) long, ascending: the tokens that stand most often in the answers, those that begin and end texts included.

    Raises:
        ValueError: if there are more of the latter than places.
    """
    vocabulary = vocabulary_size(target)
    counts = torch.zeros(vocabulary, dtype=torch.long)
    for number in range(files):
        for ids, begin in unpack(texts.load(number)):
            answer = ids[begin:]
            counts += torch.bincount(answer[answer < vocabulary], minlength=vocabulary)
    special = special_ids(target, None, vocabulary)
    return choose_ids(vocabulary, special, min(size, vocabulary), counts, None, None)
