"""The ways of generating that a diagnosis compares."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..benchmark.measuring import wait_for
from ..drafting import Drafter, DraftModel, as_drafter
from ..integration import SpeculativeDecoding
from ..verification.lossy import TruncationRule
from .draft_laws import effective_temperature
from .matched import lossy_rule
from .matched_sampling import MatchedSampling
from .position_reading import PositionReading
from .steps import RowWork, work_by_row
from .text import Text, lay_out
from .text_metrics import real_tokens

TARGET, MATCHED, LOSSLESS, RULE = "target", "matched", "lossless", "rule"
ARMS = (TARGET, MATCHED, LOSSLESS, RULE)
"""Plain sampling of the target; of the rule's matched baseline; lossless speculation (token verification); the rule."""


@dataclass(frozen=True)
class Generated:
    """What a call gave.

    Attributes:
        new: new tokens by row, without padding.
        seconds: wall time of the call.
        work: by row, of speculative calls.
    """

    new: list[list[int]]
    seconds: float
    work: list[RowWork] | None


@dataclass
class Comparison:
    """Models, rule and options of a diagnosis.

    Attributes:
        target: the target model.
        draft: a draft model or drafter.
        rule, rule_options: name and parameters of a lossy rule.
        num_draft_tokens: drafted per step, or None for the drafter's own.
        draft_temperature: of drafts, or None for the target's.
        max_new_tokens: the limit of new tokens.
        options: further ones of `generate`.

    Raises:
        ValueError, TypeError: for a rule that is lossless or does not exist, options that it does not have, and options
            of `generate` that have no place here.
    """

    target: Any
    draft: Any
    rule: str
    rule_options: Mapping[str, Any]
    num_draft_tokens: int | None
    draft_temperature: float | None
    max_new_tokens: int
    options: dict[str, Any]
    drafter: Drafter = field(init=False)

    def __post_init__(self) -> None:
        if not self.options.setdefault("do_sample", True):
            raise ValueError(
                "do_sample=False: for a greedy target a lossy rule emits the target's own tokens or is refused; "
                "allowed is True"
            )
        for name in ("num_return_sequences", "num_beams"):
            if (self.options.get(name) or 1) != 1:
                raise ValueError(f"{name}={self.options[name]!r}: allowed is 1; use repeats= for several answers")
        self.rule_object = lossy_rule(self.rule, **self.rule_options)
        self.drafter = as_drafter(self.draft)
        self.temperature = effective_temperature(self.drafter, self.draft_temperature)

    @property
    def has_matched_baseline(self) -> bool:
        """Whether it can be sampled: a truncation needs the target alone, other rules a draft model."""
        return isinstance(self.rule_object, TruncationRule) or isinstance(self.drafter, DraftModel)

    def strategy(self, arm: str) -> Any:
        """For `custom_generate`; None for the host's own sampling."""
        if arm == TARGET:
            return None
        if arm == MATCHED:
            alone = isinstance(self.rule_object, TruncationRule)
            model = None if alone else getattr(self.drafter, "model", None)
            return MatchedSampling(self.rule, model, draft_temperature=self.temperature, **self.rule_options)
        own: dict[str, Any] = {}
        if arm == RULE:
            own = {"verification": self.rule, "verification_options": self.rule_options}
        return SpeculativeDecoding(
            self.drafter, num_draft_tokens=self.num_draft_tokens, draft_temperature=self.draft_temperature, **own
        )

    def generate(self, arm: str, inputs: Mapping[str, Tensor]) -> Generated:
        """Generate for a batch, timed."""
        strategy = self.strategy(arm)
        options: dict[str, Any] = {**self.options, "max_new_tokens": self.max_new_tokens}
        if strategy is not None:
            options["custom_generate"] = strategy
        speculative = isinstance(strategy, SpeculativeDecoding)
        begin = time.perf_counter()
        output = self._call(inputs, {**options, "return_dict_in_generate": speculative})
        sequences = output.sequences if speculative else output
        wait_for(sequences.device)
        seconds = time.perf_counter() - begin
        work = work_by_row(output.speculation.steps, len(sequences)) if speculative else None
        rows = sequences[:, inputs["input_ids"].shape[1] :].tolist()
        if work is not None:
            return Generated([row[: len(w.drafted)] for row, w in zip(rows, work, strict=True)], seconds, work)
        return Generated([real_tokens(row, self.end_tokens, self.pad_token) for row in rows], seconds, None)

    def warm_up(self, arm: str, inputs: Mapping[str, Tensor]) -> None:
        """Let models and libraries settle: a few tokens, not timed."""
        options = {name: value for name, value in self.options.items() if name not in ("min_new_tokens", "min_length")}
        short = Comparison(
            self.target, self.draft, self.rule, self.rule_options, self.num_draft_tokens, self.draft_temperature, 4,
            options,
        )  # fmt: skip
        short.generate(arm, inputs)

    def read(self, arm: str, inputs: Mapping[str, Tensor], generated: Generated) -> PositionReading:
        """Read what was generated again; laws are measured for the rule's texts."""
        texts: list[Text] = lay_out(inputs["input_ids"], inputs.get("attention_mask"), generated.new, generated.work)
        rule = self.rule_object if arm == RULE else None
        reading = PositionReading(texts, rule, self.drafter, self.temperature)
        options = {**self.options, "max_new_tokens": self.max_new_tokens, "return_dict_in_generate": False}
        self._call(inputs, {**options, "custom_generate": reading})
        return reading

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a text."""
        ids = self._special("eos_token_id")
        if ids is None:
            return frozenset()
        return frozenset(ids) if isinstance(ids, (list, tuple)) else frozenset({int(ids)})

    @property
    def pad_token(self) -> int | None:
        """The id behind rows that have ended."""
        pad = self._special("pad_token_id")
        return None if pad is None else int(pad)

    def _special(self, name: str) -> Any:
        config = self.options.get("generation_config") or self.target.generation_config
        return self.options[name] if name in self.options else getattr(config, name, None)

    def _call(self, inputs: Mapping[str, Tensor], options: dict[str, Any]) -> Any:
        """The host's own `generate`, even where `enable` has put ours on the instance."""
        return type(self.target).generate(self.target, **inputs, **options)
