"""Fit one table to the samples of several calibrations, and say what each set of signals tells about them.

    python examples/fit_samples.py CHAT MATH CODE --signals q [--compare q entropy S,A A,q] [--out TABLE]

CHAT, MATH and CODE are folders that `specverify calibrate` wrote, of the same target, draft and companion. Bits are
held out by sequence and bias-corrected; the first line is of the table's own signals. The table says nothing of its
models, so they are not compared when it is used.
"""

import argparse
from pathlib import Path

from safetensors import safe_open

from hf_specverify.calibrating import CalibrationSamples
from hf_specverify.scheduling import SIGNALS, CalibrationTable


def load(folder: Path) -> CalibrationSamples:
    path = folder / "samples.safetensors"
    if not path.exists():
        raise SystemExit(f"{path}: there is none; allowed are folders that `specverify calibrate` wrote")
    with safe_open(str(path), framework="pt") as file:
        names = [name for name in SIGNALS if f"signals.{name}" in file.keys()]  # noqa: SIM118 - no mapping
    return CalibrationSamples.load(path, names)


def join(folders: list[Path]) -> CalibrationSamples:
    """All samples, sequences of different folders told apart, with the signals that all have."""
    parts = [load(folder) for folder in folders]
    names = [name for name in parts[0].signals if all(name in part.signals for part in parts)]
    joined = CalibrationSamples.empty(names)
    for part in parts:
        joined.add({name: part.signals[name] for name in names}, part.outcome, part.groups, part.sequences)
    return joined


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--signals", required=True)
    parser.add_argument("--compare", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    samples = join(options.folders)
    sets = [text.split(",") for text in dict.fromkeys([options.signals, *options.compare])]
    missing = sorted({name for names in sets for name in names} - set(samples.signals))
    if missing:
        raise SystemExit(f"{missing}: not recorded in all folders; allowed are {sorted(samples.signals)}")
    table = CalibrationTable.fit(samples.signals, samples.outcome, samples.groups, sets=sets)
    gains, accepted = table.information_gain(), float(samples.outcome.mean())
    print(f"{len(samples.outcome)} positions, {accepted:.3f} accepted, H(X) = {gains.entropy:.3f} bits")
    for names, gain in gains.items():
        print(f"{', '.join(names):<28} {gain.bits:.3f} bits, {gain.share:.0%}")
    if gains.companion_bits is not None:
        print(f"the companion adds {gains.companion_bits:.3f} bits to the best of the draft's own")
    if options.out is not None:
        table.save_pretrained(options.out)


if __name__ == "__main__":
    main()
