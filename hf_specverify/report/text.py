"""The report as a table in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .steps import COUNTS

if TYPE_CHECKING:
    from .report import SpeculationReport


def table(report: SpeculationReport) -> str:
    """One line per subject: its name, and the figures."""
    lines = [*_origin(report), *_work(report), *_pace(report)]
    return "\n".join(f"{name:<17}{text}" for name, text in lines)


def verdict(report: SpeculationReport) -> str:
    """The verifier's name, and whether the output is exact."""
    return f"{report.verification} (lossless)" if report.lossless else f"LOSSY: {report.verification}"


def _origin(report: SpeculationReport) -> Iterable[tuple[str, str]]:
    drift = "" if report.drift is None else f", drift {report.drift:+.3f}"
    choices = f"; steps: {_histogram(report.choices)}" if report.choices else ""
    yield "verification", verdict(report)
    yield "drafter", f"{report.drafter}, {report.layout} layout"
    yield "schedule", f"{report.schedule}{drift}{choices}"


def _work(report: SpeculationReport) -> Iterable[tuple[str, str]]:
    by_position = report.acceptance_by_position
    plain = report.mode_by_step.count("plain")
    yield "tokens", ", ".join(f"{getattr(report, name)} {name}" for name in COUNTS)
    yield "target passes", f"{report.target_passes} ({plain} plain), {report.row_passes} row passes"
    yield "tokens per pass", f"{report.tokens_per_target_pass:.2f} per row"
    yield "acceptance rate", f"{report.acceptance_rate:.3f}"
    yield "  conditional", " ".join(f"{rate:.2f}" for rate in by_position["conditional"]) or "-"
    yield "  unconditional", " ".join(f"{rate:.2f}" for rate in by_position["unconditional"]) or "-"
    yield (
        "rejected",
        f"{report.rejected_share:.1%} of the verified tokens, {report.wasted_verification:.1%} of all scored ones",
    )
    yield "verify lengths", _histogram(report.verify_lengths) or "-"
    yield "worst rows", f"{report.mean_verified_worst_rows:.2f} verified per pass, mean of the lowest tenth"


def _pace(report: SpeculationReport) -> Iterable[tuple[str, str]]:
    tail = ", ".join(f"{name} {seconds:.3f}" for name, seconds in report.row_latency_tail.items())
    yield "speed", f"{report.tokens_per_second:.1f} tokens/s, first after {report.time_to_first_token:.3f} s"
    yield "  by row", f"{tail} s per token"
    if report.slower_than_plain is not None:
        yield "  slower steps", f"{report.slower_than_plain:.1%} of the speculative ones were slower than plain ones"
    yield "time", f"{report.total_seconds:.3f} s, {report.time_outside_forwards:.1%} outside forwards"
    if report.expected_seconds is not None:
        yield "  by the costs", f"{report.expected_seconds:.3f} s for the forwards of all steps, without the prompt's"
    yield "  by phase", ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in report.seconds.items())


def _histogram(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name}: {times}" for name, times in counts.items())
