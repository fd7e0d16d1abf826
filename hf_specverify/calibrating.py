"""Calibration: run speculative decoding, write down what was accepted, and fit the table that predicts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .drafting import DraftingCall, as_drafter
from .hub.describing import describe_calibration
from .integration import SpeculativeDecoding
from .scheduling.calibration import CalibrationTable
from .scheduling.head_companion import start_companion
from .scheduling.recording import RecordingSchedule
from .scheduling.schedule import Schedule
from .scheduling.signals import SIGNALS
from .scheduling.tree_options import tree_of


@dataclass
class CalibrationSamples:
    """Every position that verification reached so far.

    Attributes:
        signals: (n,) float32 by name.
        outcome: (n,) float32, acceptance probabilities.
        groups: (n,) long, the sequence of each position.
        batches: batches that these are from.
        sequences: sequences in them.
        settings: how they were made, JSON values; the caller's to compare.
    """

    signals: dict[str, Tensor]
    outcome: Tensor = field(default_factory=lambda: torch.zeros(0))
    groups: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    batches: int = 0
    sequences: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, names: Sequence[str], settings: Mapping[str, Any] | None = None) -> CalibrationSamples:
        """No position yet."""
        return cls({name: torch.zeros(0) for name in names}, settings=dict(settings or {}))

    def add(self, signals: Mapping[str, Tensor], outcome: Tensor, groups: Tensor, sequences: int) -> None:
        """Take in the positions of one more batch, whose rows are numbered from 0."""
        self.signals = {name: torch.cat([value, signals[name]]) for name, value in self.signals.items()}
        self.outcome = torch.cat([self.outcome, outcome])
        self.groups = torch.cat([self.groups, groups + self.sequences])
        self.batches, self.sequences = self.batches + 1, self.sequences + sequences

    @classmethod
    def join(cls, batches: Sequence[CalibrationSamples]) -> CalibrationSamples:
        """The samples of single batches, at least one, in order."""
        found = cls.empty(tuple(batches[0].signals), batches[0].settings)
        for batch in batches:
            found.add(batch.signals, batch.outcome, batch.groups, batch.sequences)
        return found

    def fit(self, **options: Any) -> CalibrationTable:
        """The table of these samples; options as for `CalibrationTable.fit`.

        Raises:
            ValueError: if no position was reached.
        """
        if not len(self.outcome):
            raise ValueError(
                "batches: no draft token was verified; allowed: at least one prompt that leaves room for drafts"
            )
        return CalibrationTable.fit(self.signals, self.outcome, self.groups, **options)

    def save(self, path: Path) -> None:
        """Write them; the old file stays whole until the new one is."""
        counts = torch.tensor([self.batches, self.sequences])
        tensors = {f"signals.{name}": value.contiguous() for name, value in self.signals.items()}
        tensors |= {"outcome": self.outcome, "groups": self.groups, "counts": counts}
        unfinished = path.with_name(path.name + ".part")
        save_file(tensors, unfinished, metadata={"settings": json.dumps(self.settings)})
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path, names: Sequence[str]) -> CalibrationSamples:
        """Read what `save` wrote.

        Raises:
            ValueError: if the file is damaged or holds other signals; the message names the field.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
                settings = json.loads((file.metadata() or {}).get("settings", "{}"))
        except (SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error})") from None
        wanted = {*(f"signals.{name}" for name in names), "outcome", "groups", "counts"}
        if set(tensors) != wanted:
            raise ValueError(f"{path} has the fields {sorted(tensors)}; allowed: {sorted(wanted)}")
        size = tensors["outcome"].shape
        for name, tensor in tensors.items():
            if name != "counts" and (tensor.ndim != 1 or tensor.shape != size):
                raise ValueError(f"{path}: {name} must have the shape {tuple(size)}, got {tuple(tensor.shape)}")
        batches, sequences = tensors["counts"].tolist()
        signals = {name: tensors[f"signals.{name}"] for name in names}
        return cls(signals, tensors["outcome"], tensors["groups"], batches, sequences, settings)


def default_signals(draft: Any, companion_model: Any = None) -> tuple[str, ...]:
    """All signals that a drafter and a companion give."""
    own = SpeculativeDecoding(draft).drafter.signals
    of_companion = () if companion_model is None else (("S", "A") if "q" in own else ("c",))
    return (*of_companion, *(name for name in SIGNALS if name in own), "position")


def calibrate(
    target: Any,
    draft: Any,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    companion_model: Any = None,
    signals: Sequence[str] | None = None,
    num_draft_tokens: int | None = None,
    sets: Sequence[Sequence[str]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    samples: CalibrationSamples | None = None,
    on_batch: Callable[[CalibrationSamples], None] | None = None,
    **generate_options: Any,
) -> CalibrationTable:
    """Fit a calibration table to what verification accepts (2509.24328, §4).

    Runs ordinary speculative decoding with a fixed length, and records the signals and the acceptance probability of
    every position that verification reached. With a drafter of dynamic trees these are the children of every node that
    was accepted, and of the root.

    Args:
        target: the target model.
        draft: a draft model or drafter.
        batches: inputs of `generate`, (B, T) `input_ids` and `attention_mask` each.
        companion_model: a companion, for the signals S, A and c.
        signals: names to record; None: all that drafter and companion give.
        num_draft_tokens: drafted and verified per step; None leaves it to the drafter.
        sets: signal sets for the table (the first) and its information table, see `CalibrationTable.fit`.
        metadata: kept in the table.
        samples: those of an interrupted run; their batches are skipped, and new ones are added to them.
        on_batch: called after every batch, to show progress or to save.
        generate_options: passed to `generate`: sampling, lengths, ends.

    Raises:
        ValueError: if no position was reached, or an option is not allowed.
    """
    names = tuple(signals) if signals is not None else default_signals(draft, companion_model)
    unknown = [name for name in names if name not in SIGNALS]
    if unknown:
        raise ValueError(f"signals={names!r}: {unknown} are unknown; allowed are {sorted(SIGNALS)}")
    found = samples or CalibrationSamples.empty(names)
    done = found.batches
    for number, inputs in enumerate(batches):
        if number >= done:
            found.add(*record_batch(target, draft, companion_model, inputs, names, num_draft_tokens, generate_options))
            if on_batch is not None:
                on_batch(found)
    origin = describe_calibration(target, draft, companion_model, num_draft_tokens, generate_options)
    return found.fit(sets=sets, metadata=metadata, origin=origin)


def record_batch(
    target: Any,
    draft: Any,
    companion_model: Any,
    inputs: Mapping[str, Tensor],
    names: Sequence[str],
    num_draft_tokens: int | None,
    generate_options: Mapping[str, Any],
) -> tuple[dict[str, Tensor], Tensor, Tensor, int]:
    """Generate for one batch; arguments as for `calibrate`, `names` being the signals to record.

    Returns:
        What `CalibrationSamples.add` takes.
    """
    strategy = _Recording(draft, companion_model, tuple(names), num_draft_tokens)
    target.generate(**inputs, custom_generate=strategy, **generate_options)
    assert strategy.schedule is not None
    return *strategy.schedule.samples(), len(inputs["input_ids"])


class _Recording(SpeculativeDecoding):
    """Speculative decoding that records; used for one call."""

    def __init__(
        self, draft: Any, companion_model: Any, signals: tuple[str, ...], num_draft_tokens: int | None
    ) -> None:
        # Of trees the outcome is p of a token, whichever verifier decides.
        verification = "token" if tree_of(as_drafter(draft)) is None else "naive"
        super().__init__(draft, companion_model, verification=verification)
        self.names, self.length = signals, num_draft_tokens
        self.schedule: RecordingSchedule | None = None

    def make_schedule(self, call: DraftingCall) -> Schedule:
        needs_companion = any(SIGNALS[name].needs == "companion" for name in self.names)
        if needs_companion and self.companion_model is None:
            raise ValueError(f"companion_model=None: the signals {self.names} need a companion")
        tree = tree_of(self.drafter)
        if needs_companion and tree is not None:
            raise ValueError(
                f"signals={self.names!r}: a companion reads single chains; allowed with tree={tree!r}: the draft's own"
            )
        companion = start_companion(self.companion_model, call) if needs_companion else None
        length = self.length or min(self.drafter.default_num_draft_tokens, 64)
        self.schedule = RecordingSchedule(length, self.names, companion)
        return self.schedule
