"""Records and reports that several tests of the report use."""

import random
import re
from ast import literal_eval
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_specverify.report import PHASES, SpeculationReport, StepRecord

METRICS = Path(__file__).parents[1] / "docs" / "metrics.md"
SECONDS = {"draft": 0.2, "companion": 0.05, "schedule": 0.02, "target": 0.45, "verify": 0.05, "other": 0.03}


def make_step(
    *rows: tuple[int, int, int, int], mode: str = "speculative", elapsed: float = 1.0, **more: Any
) -> StepRecord:
    """Each row: drafted, verified, accepted, committed."""
    drafted, verified, accepted, committed = zip(*rows, strict=True) if rows else ((), (), (), ())
    return StepRecord(mode, tuple(range(len(rows))), drafted, verified, accepted, committed, elapsed, **more)


def make_report(
    steps: Sequence[StepRecord],
    *,
    seconds: dict[str, float] = SECONDS,
    verification: str = "block",
    lossless: bool = True,
    **more: Any,
) -> SpeculationReport:
    return SpeculationReport.from_steps(
        steps,
        seconds=seconds,
        verification=verification,
        lossless=lossless,
        drafter="draft model",
        layout="packed",
        **more,
    )


def random_report(seed: int) -> SpeculationReport:
    rng = random.Random(seed)
    steps, elapsed = [], 0.0
    for _ in range(rng.randint(0, 12)):
        rows = []
        for _ in range(rng.randint(1, 4)):
            drafted = rng.randint(0, 6)
            verified = rng.randint(0, drafted)
            accepted = rng.randint(0, verified)
            rows.append((drafted, verified, accepted, rng.choice([accepted + 1, rng.randint(0, accepted + 1)])))
        elapsed += rng.random()
        known = {name: rng.choice([None, rng.random()]) for name in ("plain_seconds", "expected_seconds")}
        known["choice"] = rng.choice(["", "fixed 5", "cut"])
        steps.append(make_step(*rows, mode=rng.choice(["speculative", "plain"]), elapsed=elapsed, **known))
    drift = rng.choice([None, rng.uniform(-1, 1)])
    return make_report(steps, seconds={phase: rng.random() for phase in PHASES}, schedule="auto", drift=drift)


def documented_example() -> tuple[SpeculationReport, dict[str, object]]:
    text = METRICS.read_text(encoding="utf-8")
    namespace: dict[str, object] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.S).group(1), namespace)
    values = re.findall(r"^\| `([^`]+)` \|[^|]*\| `([^`]+)` \|$", text, re.M)
    return namespace["report"], {name: literal_eval(value) for name, value in values}
