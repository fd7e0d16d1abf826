"""Answers to many prompts: batches cut from a list of texts, each answered by speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from .benchmark.prompts import chat_encoder, encode_chunk
from .benchmark.runs import eos_token_ids, pad_token_id
from .decoding.traits import input_device
from .diagnostics.text_metrics import ending
from .integration import SpeculativeDecoding
from .report import SpeculationReport

REPORTED = (
    "verification", "lossless", "drafter", "schedule", "layout", "drafted", "verified", "accepted", "committed",
    "target_passes", "row_passes", "tokens_per_target_pass", "acceptance_rate",
)  # fmt: skip
"""Of the report of a batch, what its answers are written down with: nothing that depends on the clock."""


@dataclass(frozen=True)
class Answering:
    """Models, prompts and options of a run of generation. What a batch gives depends on its number only.

    Attributes:
        target, draft, companion: the models; draft may be a drafter, companion None.
        tokenizer: the target's.
        texts: the prompts.
        indices: their numbers in the file they are from.
        batch_size: rows per call; the last batch may have fewer.
        chat: whether a prompt is the user's turn of a chat, where the tokenizer has a template.
        speculation: options of `SpeculationConfig`.
        sampling: options of `generate`: max_new_tokens, do_sample, …
        seed: of all random draws.
    """

    target: Any
    draft: Any
    companion: Any
    tokenizer: Any
    texts: Sequence[str]
    indices: Sequence[int]
    batch_size: int
    chat: bool
    speculation: Mapping[str, Any]
    sampling: Mapping[str, Any]
    seed: int

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.texts) // self.batch_size)

    @cached_property
    def pad(self) -> int:
        """The id that fills up rows."""
        return pad_token_id(self.target, self.tokenizer)

    def inputs(self, number: int) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` (B, T) of a batch, on the target's device."""
        encode = chat_encoder(self.tokenizer) if self.chat else self.tokenizer
        return encode_chunk(encode, self.texts[self._rows(number)], self.pad, input_device(self.target))

    def make(self, number: int) -> dict[str, Any]:
        """Answer a batch.

        Returns:
            JSON values: `answers`, one for each prompt, and `seconds` of the batch by phase.
        """
        inputs = self.inputs(number)
        strategy = SpeculativeDecoding(self.draft, self.companion, **self.speculation)
        torch.manual_seed(self.seed * 1_000_003 + number)
        output = type(self.target).generate(
            self.target, **inputs, custom_generate=strategy, return_dict_in_generate=True, **self.sampling
        )
        prompt, rows = inputs["input_ids"].shape[1], self._rows(number)
        report = output.speculation
        lengths = _lengths(report, len(inputs["input_ids"]))
        new = [row[:length] for row, length in zip(output.sequences[:, prompt:].tolist(), lengths, strict=True)]
        about = {"batch": number, **{name: getattr(report, name) for name in REPORTED}}
        answers = [self._answer(index, tokens, about) for index, tokens in zip(self.indices[rows], new, strict=True)]
        return {"answers": answers, "seconds": report.seconds}

    def _rows(self, number: int) -> slice:
        return slice(number * self.batch_size, (number + 1) * self.batch_size)

    def _answer(self, index: int, tokens: list[int], about: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": index,
            "text": self.tokenizer.decode(tokens, skip_special_tokens=True),
            "tokens": len(tokens),
            "ending": ending(tokens, eos_token_ids(self.target), self.sampling["max_new_tokens"]),
            "speculation": about,
        }


def _lengths(report: SpeculationReport, rows: int) -> list[int]:
    """New tokens of each row, its end token included."""
    found = [0] * rows
    for step in report.steps:
        for row, count in zip(step.rows, step.committed, strict=True):
            found[row] += count
    return found


def summary(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What batches did in all, from what `Answering.make` gave.

    Returns:
        JSON values: prompts, tokens, endings, drafted, verified, accepted, target_passes, tokens_per_target_pass, and
        seconds by phase, added up over batches (which several processes may have run at the same time).
    """
    answers = [answer for part in parts for answer in part["answers"]]
    batches = [part["answers"][0]["speculation"] for part in parts]
    totals = {
        name: sum(batch[name] for batch in batches)
        for name in ("drafted", "verified", "accepted", "committed", "target_passes", "row_passes")
    }
    endings = [answer["ending"] for answer in answers]
    return {
        "prompts": len(answers),
        "tokens": sum(answer["tokens"] for answer in answers),
        "endings": {name: endings.count(name) for name in sorted(set(endings))},
        **totals,
        "tokens_per_target_pass": totals["committed"] / totals["row_passes"],
        "seconds": {phase: sum(part["seconds"][phase] for part in parts) for phase in parts[0]["seconds"]},
    }
