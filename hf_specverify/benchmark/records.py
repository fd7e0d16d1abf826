"""What is written down of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_specverify.benchmark.measuring import row_latencies
from hf_specverify.benchmark.runs import Outcome
from hf_specverify.benchmark.settings import Block, Cell


@dataclass(frozen=True)
class SpeculationFigures:
    """What the SpeculationReport of a run says; times in seconds.

    Attributes:
        drafted, verified, accepted, committed, target_passes: totals over rows and steps, as the report defines them.
        tokens_per_target_pass, acceptance_rate: as the report defines them.
        seconds: wall time by phase.
        seconds_outside_forwards: wall time of the call less the forwards of target, draft and companion.
        rejected_share, slower_than_plain, drift, choices: as the report defines them.
        mean_verified_worst_rows: likewise; drafts verified per pass of the rows that got the fewest.
    """

    drafted: int
    verified: int
    accepted: int
    committed: int
    target_passes: int
    tokens_per_target_pass: float
    acceptance_rate: float
    seconds: dict[str, float]
    seconds_outside_forwards: float
    rejected_share: float = 0.0
    slower_than_plain: float | None = None
    drift: float | None = None
    choices: dict[str, int] | None = None
    mean_verified_worst_rows: float = 0.0

    @classmethod
    def from_report(cls, report: Any, wall_seconds: float) -> SpeculationFigures:
        """Take the figures out of a SpeculationReport."""
        seconds = dict(report.seconds)
        forwards = sum(seconds.get(phase, 0.0) for phase in ("draft", "companion", "target"))
        return cls(
            drafted=report.drafted,
            verified=report.verified,
            accepted=report.accepted,
            committed=report.committed,
            target_passes=report.target_passes,
            tokens_per_target_pass=report.tokens_per_target_pass,
            acceptance_rate=report.acceptance_rate,
            seconds=seconds,
            seconds_outside_forwards=wall_seconds - forwards,
            rejected_share=report.rejected_share,
            slower_than_plain=report.slower_than_plain,
            drift=report.drift,
            choices=dict(report.choices),
            mean_verified_worst_rows=report.mean_verified_worst_rows,
        )


@dataclass(frozen=True)
class RunRecord:
    """One call of `generate`; lists have one entry per row, times are in seconds.

    Attributes:
        batch_size, temperature, repeat, chunk, prompts: the block (`prompts`: numbers of the selected prompts).
        position: place of the run within its block, from 0.
        cell, method, draft_length, verification, schedule: what ran.
        seed: of torch's generators, set before the run.
        new_tokens: up to and including the end of text, without padding.
        wall_seconds, tokens_per_second: of all rows together.
        time_to_first_token, time_per_output_token: see `RowLatency`; the latter is None for a row of a single token.
        identical_to_plain: token for token; greedy only, and None for plain itself.
        peak_memory_bytes: growth during the run; None unless memory was profiled.
        expected_seconds: of the forwards, without the prompt's, by the costs that were given; None without them, for
            trees and for stock.
        speculation: ours only.
    """

    batch_size: int
    temperature: float
    repeat: int
    chunk: int
    prompts: tuple[int, ...]
    position: int
    cell: str
    method: str
    draft_length: int | None
    verification: str
    schedule: str
    seed: int
    new_tokens: tuple[int, ...]
    wall_seconds: float
    tokens_per_second: float
    time_to_first_token: tuple[float, ...]
    time_per_output_token: tuple[float | None, ...]
    identical_to_plain: tuple[bool, ...] | None = None
    peak_memory_bytes: int | None = None
    expected_seconds: float | None = None
    speculation: SpeculationFigures | None = None

    @property
    def block_key(self) -> tuple[int, float, int, int]:
        """Identify the block that the run belongs to, as `Block.key`."""
        return (self.batch_size, self.temperature, self.repeat, self.chunk)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> RunRecord:
        """Rebuild a record from its JSON values."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        if values["speculation"] is not None:
            values["speculation"] = SpeculationFigures(**values["speculation"])
        return cls(**values)


def record_run(
    block: Block,
    cell: Cell,
    position: int,
    seed: int,
    outcome: Outcome,
    new_tokens: tuple[int, ...],
    peak: int | None,
    expected_seconds: float | None = None,
) -> RunRecord:
    """Write down a run; whether its tokens are those of plain decoding is filled in when the block is complete."""
    latencies = row_latencies(outcome.commits, new_tokens)
    report = outcome.report
    return RunRecord(
        batch_size=block.batch_size,
        temperature=block.temperature,
        repeat=block.repeat,
        chunk=block.chunk,
        prompts=block.prompts,
        position=position,
        cell=cell.name,
        method=cell.method,
        draft_length=cell.draft_length,
        verification=cell.verification,
        schedule=cell.schedule,
        seed=seed,
        new_tokens=new_tokens,
        wall_seconds=outcome.wall_seconds,
        tokens_per_second=sum(new_tokens) / outcome.wall_seconds,
        time_to_first_token=tuple(latency.first_token for latency in latencies),
        time_per_output_token=tuple(latency.per_output_token for latency in latencies),
        peak_memory_bytes=peak,
        expected_seconds=expected_seconds,
        speculation=None if report is None else SpeculationFigures.from_report(report, outcome.wall_seconds),
    )
