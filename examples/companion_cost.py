"""At which cost would a companion pay? Steps simulated from a calibration, with the companion's measured costs scaled.

    python examples/companion_cost.py TABLE COSTS [--batch-size 8,16] [--context 320] [--longest 7]

TABLE has signals of the drafter and of the companion (`specverify calibrate --signals match_length,c`), COSTS the
target and the companion (`specverify profile`). Printed: tokens per second over those of the best fixed length or plain
decoding, with cuts by the drafter's signals alone, and with the companion asked at every step. Positions are drawn
independently of each other, see `simulated_rates`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from hf_specverify.scheduling import CalibrationTable, CostModel
from hf_specverify.scheduling.call_costs import CallCosts
from hf_specverify.scheduling.simulate import simulated_rates

SCALES = (1.0, 0.5, 0.25, 0.1, 0.03)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("costs", type=Path)
    parser.add_argument("--batch-size", default="8,16")
    parser.add_argument("--context", type=int, default=320)
    parser.add_argument("--longest", type=int, default=7)
    options = parser.parse_args()
    table, measured = CalibrationTable.from_pretrained(options.table), CostModel.load(options.costs)
    print("| batch |", " | ".join(f"companion × {scale:g}" for scale in SCALES), "| without |")
    print("| --- |", " | ".join("---" for _ in SCALES), "| --- |")
    for rows in map(int, options.batch_size.split(",")):
        cells = []
        for scale in SCALES:
            points = [
                replace(point, seconds=point.seconds * scale) if point.role == "companion" else point
                for point in measured.points
            ]
            prices = CallCosts(CostModel(points, measured.fingerprint), options.longest)
            rates = simulated_rates(table, prices, rows, options.context)
            base = max(rates["plain"], rates["fixed"])
            cells.append(f"{rates['cut with companion'] / base:.2f}")
        print(f"| {rows} |", " | ".join(cells), f"| {rates['cut'] / base:.2f} |")


if __name__ == "__main__":
    main()
