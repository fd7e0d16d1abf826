"""What would schedules gain if drafts cost less? Simulated from a calibration, with the draft's costs scaled.

    python examples/draft_cost.py TABLE COSTS [--batch-size 1,8,32] [--context 256] [--longest 8]

TABLE has signals of the draft model, and may have those of a companion (`specverify calibrate --signals A,q`), COSTS
the forwards of all (`specverify profile`). Printed, per batch size: the best fixed length over plain decoding, then
what stopping drafts, cutting them, and cutting them by a companion's signals too bring over the better of the two,
each with the length that suits it best. Positions are drawn independently of each other, see `simulated_rates`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.call_costs import CallCosts
from hf_specverify.scheduling.simulate import simulated_rates

SCALES = (1.0, 0.5, 0.25, 0.1, 0.03)
WAYS = ("stop", "cut", "cut with companion")


def best_rates(table: CalibrationTable, costs: CostModel, longest: int, rows: int, context: int) -> dict[str, float]:
    """The highest tokens per second of every way, over the lengths that drafts may have."""
    found: dict[str, float] = {}
    for length in range(1, longest + 1):
        for way, rate in simulated_rates(table, CallCosts(costs, length), rows, context).items():
            found[way] = max(rate, found.get(way, 0.0))
    return found


def scaled(measured: CostModel, scale: float) -> CostModel:
    """The costs with a cheaper draft."""
    points = [
        replace(point, seconds=point.seconds * scale) if point.role == "draft" else point for point in measured.points
    ]
    return CostModel(points, measured.fingerprint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("costs", type=Path)
    parser.add_argument("--batch-size", default="1,8,32")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--longest", type=int, default=8)
    options = parser.parse_args()
    table, measured = CalibrationTable.from_pretrained(options.table), CostModel.load(options.costs)
    print("| batch | |", " | ".join(f"draft × {scale:g}" for scale in SCALES), "|")
    print("| --- | --- |", " | ".join("---" for _ in SCALES), "|")
    for rows in map(int, options.batch_size.split(",")):
        columns = [
            best_rates(table, scaled(measured, scale), options.longest, rows, options.context) for scale in SCALES
        ]
        share = [
            measured.latency(rows, rows, options.context, "draft")
            * scale
            / measured.latency(rows, rows, options.context)
            for scale in SCALES
        ]
        lines = {
            "a draft pass, of a target pass": share,
            "best fixed length over plain": [rates["fixed"] / rates["plain"] for rates in columns],
        } | {
            f"{way} over the better of these": [rates[way] / max(rates["fixed"], rates["plain"]) for rates in columns]
            for way in WAYS
            if way in columns[0]
        }
        for name, values in lines.items():
            print(f"| {rows} | {name} |", " | ".join(f"{value:.2f}" for value in values), "|")


if __name__ == "__main__":
    main()
