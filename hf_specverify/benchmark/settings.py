"""What a benchmark measures: every option once, validated, and the cells that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from hf_specverify.benchmark.drafts import (
    LOOKUP,
    LOOKUP_NGRAM,
    check_draft,
    check_trim_text,
    exit_layers,
    head_name,
)
from hf_specverify.benchmark.environment import parse_dtype, parse_form
from hf_specverify.config import SpeculationConfig

SCHEDULES = {
    "fixed": {"verify_length": "fixed"},
    "auto": {"verify_length": "auto"},
    "stop": {"draft_length": "goodput"},
    "cut": {"verify_length": "goodput"},
    "stop+cut": {"draft_length": "goodput", "verify_length": "goodput"},
}
"""Options of speculation for each schedule."""

Number = TypeVar("Number", int, float)
Value = TypeVar("Value", int, float, str)


@dataclass(frozen=True)
class BenchSettings:
    """Options of a benchmark; they determine what is run, and a resumed benchmark must have the same ones.

    Attributes:
        target: name or folder of the target model (recorded; `run_bench` gets the loaded model).
        draft: name or folder of the draft model, "lookup" for prompt lookup, "early-exit:N" for the target's first N
            layers, or "head:" and the name or folder of a feature head.
        num_prompts: prompts used, evenly spaced over those given.
        max_new_tokens: limit of new tokens per row.
        batch_sizes: rows per call of `generate`.
        draft_lengths: draft tokens per step.
        verifications: verifiers of our runs, each with its number of draft paths where that is not 1:
            "block", "greedy_multipath_block:3".
        stock: whether stock assisted decoding runs too (at batch 1, and not with a feature head, which it can't use).
        stock_confidences: thresholds of stock's draft confidence. 0 drafts every length of `draft_lengths`; others run
            once, up to Transformers' own default of 20 tokens.
        schedules: of our runs: "fixed" verifies every draft length of `draft_lengths`; the others choose, up to the
            largest of them: "auto", "stop" (draft_length="goodput"), "cut" (verify_length="goodput"), "stop+cut"; each
            may name a calibration, as in "cut:c".
        calibration: folder of the table for schedules that predict acceptance, or several with names: "q=one,c=other".
            A schedule that names none takes the one without a name, if there is one.
        costs: file of measured costs; None measures in the warm-up.
        lookup_ngram: longest n-gram that prompt lookup matches, for stock and ours alike.
        companion: name or folder of a companion model, or None; companion_quantization: as for the draft.
        temperatures: 0 is greedy; any other value samples from the whole vocabulary at that temperature.
        dtype: of both models' weights ("float32" | "bfloat16" | "float16").
        draft_quantization: "none" | "nf4" | "int8" (bitsandbytes) | "int8-copy", then "+layers:N" for the first N
            layers only and "+trim:N" for a head of N tokens: "nf4+trim:16384". Of an early exit only "none+trim:N", of
            lookup and feature heads only "none".
        trim_text: file to count tokens in for "+trim:N"; None keeps the lowest ids.
        repeats: times that every chunk of prompts is measured.
        seed: base of the seeds of all runs.
        ignore_eos: forbid the end of text, so that every row has max_new_tokens new tokens.
        raw_prompts: give prompts to the models as they are, without the tokenizer's chat template.
        profile_memory: also record how much the memory of the process (or of the GPU) grows in each run.

    Raises:
        TypeError: an option of the wrong type.
        ValueError: an option out of range; the message names option, value and what is allowed.
    """

    target: str = ""
    draft: str = LOOKUP
    num_prompts: int = 12
    max_new_tokens: int = 96
    batch_sizes: tuple[int, ...] = (1, 4, 8)
    draft_lengths: tuple[int, ...] = (1, 3, 5, 7)
    verifications: tuple[str, ...] = ("token",)
    stock: bool = True
    stock_confidences: tuple[float, ...] = (0.0,)
    schedules: tuple[str, ...] = ("fixed",)
    calibration: str | None = None
    costs: str | None = None
    lookup_ngram: int = LOOKUP_NGRAM
    companion: str | None = None
    companion_quantization: str = "none"
    temperatures: tuple[float, ...] = (0.0, 1.0)
    dtype: str = "bfloat16"
    draft_quantization: str = "none"
    trim_text: str | None = None
    repeats: int = 3
    seed: int = 0
    ignore_eos: bool = False
    raw_prompts: bool = False
    profile_memory: bool = False

    def __post_init__(self) -> None:
        """Check every option."""
        for name in ("num_prompts", "max_new_tokens", "repeats"):
            _check_integer(name, getattr(self, name), minimum=1)
        _check_integer("seed", self.seed, minimum=0)
        for name in ("batch_sizes", "draft_lengths"):
            for value in _check_values(name, getattr(self, name)):
                _check_integer(name, value, minimum=1)
        for value in _check_values("temperatures", self.temperatures):
            _check_temperature(value)
        for verification in _check_values("verifications", self.verifications):
            _, paths = parse_verification(verification)
            if paths > 1 and (self.draft == LOOKUP or exit_layers(self.draft) is not None):
                raise ValueError(
                    f"verifications contains {verification!r} with draft={self.draft!r}; allowed: single paths"
                )
        calibrations = parse_calibrations(self.calibration)
        for schedule in _check_values("schedules", self.schedules):
            kind, _, name = schedule.partition(":")
            _check_choice("schedules", kind, tuple(SCHEDULES))
            if name not in calibrations and (name or kind not in ("fixed", "auto")):
                raise ValueError(
                    f"schedules contains {schedule!r}, and calibration={self.calibration!r} has none for it; allowed: "
                    "a folder, or names and folders: 'q=one,c=other'"
                )
        for value in _check_values("stock_confidences", self.stock_confidences):
            if not 0 <= value < 1:
                raise ValueError(f"stock_confidences contains {value}; allowed: numbers from 0 to below 1")
        _check_integer("lookup_ngram", self.lookup_ngram, minimum=1)
        parse_dtype(self.dtype)
        for name in ("draft_quantization", "companion_quantization"):
            parse_form(getattr(self, name), name)
        if max(self.batch_sizes) > self.num_prompts:
            raise ValueError(
                f"batch_sizes contains {max(self.batch_sizes)}, more than num_prompts={self.num_prompts}; "
                "allowed: batch sizes of at most num_prompts"
            )
        check_draft(self.draft, self.draft_quantization)
        check_trim_text(self.trim_text, self.draft_quantization, self.companion_quantization)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values (lists in place of tuples)."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BenchSettings:
        """Rebuild settings from `to_dict`."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**values)


def parse_numbers(name: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Parse "1,4,8" into numbers.

    Raises:
        ValueError: names the argument, the text and what is allowed.
    """
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}={text!r}; allowed: numbers separated by commas, such as 1,4,8") from None


def parse_verification(text: str) -> tuple[str, int]:
    """Split "greedy_multipath_block:3" into a verifier's name and a number of draft paths, 1 where none is given.

    Raises:
        ValueError: if there is no such verifier, or it takes no such number of paths.
    """
    name, _, paths = text.partition(":")
    try:
        config = SpeculationConfig(verification=name, num_draft_paths=int(paths or 1))
    except ValueError as error:
        raise ValueError(f"verification={text!r}; allowed: a verifier, or verifier:paths ({error})") from None
    return config.verification, config.num_draft_paths


def parse_calibrations(text: str | None) -> dict[str, str]:
    """Split "q=one,c=other" into folders by name; a single folder has the name "".

    Raises:
        ValueError: if a part is no name and folder.
    """
    if text is None:
        return {}
    if "=" not in text:
        return {"": text}
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not (name and folder) for name, _, folder in pairs):
        raise ValueError(f"calibration={text!r}; allowed: a folder, or names and folders: 'q=one,c=other'")
    return {name: folder for name, _, folder in pairs}


def _check_integer(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; allowed: an integer >= {minimum}")
    if value < minimum:
        raise ValueError(f"{name}={value}; allowed: an integer >= {minimum}")


def _check_values(name: str, values: Sequence[Value]) -> Sequence[Value]:
    if not values or len(set(values)) != len(values):
        raise ValueError(f"{name}={values!r}; allowed: at least one value, each of them once")
    return values


def _check_temperature(value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"temperatures contains {value}; allowed: 0 (greedy) or a positive number")


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}; allowed: {', '.join(map(repr, allowed))}")


STOCK_DRAFT_TOKENS = 20
"""Draft tokens per step of Transformers' assisted decoding by default, where a threshold of confidence stops it."""

PLAIN = "plain"
STOCK = "stock"
OURS = "ours"


@dataclass(frozen=True)
class Cell:
    """One way of generating.

    Attributes:
        method: "plain" (no draft), "stock" (assisted decoding of Transformers, batch 1 only) or "ours".
        draft_length: draft tokens per step; None for plain.
        verification: of our runs: the verifier, with its number of paths where that is not 1.
        schedule: of our runs, one of `SCHEDULES` and the name of its calibration; draft_length is then a limit.
        confidence: of stock: the threshold of its draft's confidence; draft_length is then a limit.
    """

    method: str
    draft_length: int | None = None
    verification: str = "token"
    schedule: str = "fixed"
    confidence: float = 0.0

    @property
    def name(self) -> str:
        """Return "plain", "stock L=5", "ours L=5" (token verification), "ours block L=5" or "ours block auto L<=8"."""
        if self.draft_length is None:
            return self.method
        way = self.method if self.verification == "token" else f"{self.method} {self.verification}"
        if self.confidence:
            return f"{way} confidence {self.confidence:g} L<={self.draft_length}"
        if self.schedule != "fixed":
            return f"{way} {self.schedule} L<={self.draft_length}"
        return f"{way} L={self.draft_length}"


@dataclass(frozen=True)
class Block:
    """A chunk of prompts that every cell runs one after the other; ratios are taken only within a block.

    Attributes:
        batch_size: rows.
        temperature: 0 is greedy.
        repeat: counted from 0.
        chunk: number of the chunk of prompts, from 0.
        prompts: numbers of the selected prompts in the chunk.
    """

    batch_size: int
    temperature: float
    repeat: int
    chunk: int
    prompts: tuple[int, ...]

    @property
    def key(self) -> tuple[int, float, int, int]:
        """Identify the block within a benchmark."""
        return (self.batch_size, self.temperature, self.repeat, self.chunk)

    def seed(self, base: int) -> int:
        """Return the seed of all runs of this block: the same for every cell, another for every chunk and repeat."""
        return base + 1_000_000 * self.repeat + self.chunk


def cells_for(settings: BenchSettings, batch_size: int) -> tuple[Cell, ...]:
    """Return the cells of a batch size; stock assisted decoding only does one row, and no feature heads."""
    lengths = settings.draft_lengths
    with_stock = settings.stock and batch_size == 1 and head_name(settings.draft) is None
    confidences = settings.stock_confidences if with_stock else ()
    stock = [
        Cell(STOCK, length, confidence=confidence)
        for confidence in confidences
        for length in (lengths if not confidence else (STOCK_DRAFT_TOKENS,))
    ]
    ours = [
        Cell(OURS, length, verification, schedule)
        for schedule in settings.schedules
        for length in (lengths if schedule == "fixed" else (max(lengths),))
        for verification in settings.verifications
    ]
    return (Cell(PLAIN), *stock, *ours)


def rotated(cells: Sequence[Cell], turns: int) -> list[Cell]:
    """Return the cells in an order that starts one later with each turn, so that no cell always runs first."""
    start = turns % len(cells)
    return [*cells[start:], *cells[:start]]
