"""Follow a change of text: a calibration measured on one kind of text, used on another.

    python examples/domain_switch.py CODE CHAT [--signals q] [--plot switch.png]

CODE and CHAT are folders that `specverify calibrate` wrote. The first half of CODE's positions makes the calibration;
then come the other half and CHAT, in the order in which they were verified, and the online estimate learns from each
before it predicts the next. Printed, for stretches of positions: what was accepted, what the fixed and the followed
calibration predicted, the error of both (Brier score), and the drift that a report would show.
"""

import argparse
from pathlib import Path

import torch
from fit_samples import load as load_samples

from hf_specverify.scheduling import CalibrationTable
from hf_specverify.scheduling.online import OnlineCalibration

STRETCH, BLOCK = 200, 8


def load(folder: Path, names: list[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    samples = load_samples(folder)
    missing = [name for name in names if name not in samples.signals]
    if missing:
        raise SystemExit(f"--signals {missing}: not recorded in {folder}; allowed are {sorted(samples.signals)}")
    return {name: samples.signals[name] for name in names}, samples.outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", type=Path)
    parser.add_argument("chat", type=Path)
    parser.add_argument("--signals", default="q")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    names = options.signals.split(",")
    signals, outcome = load(options.code, names)
    half = len(outcome) // 2
    table = CalibrationTable.fit({name: value[:half] for name, value in signals.items()}, outcome[:half])
    chat, chat_outcome = load(options.chat, names)
    stream = {name: torch.cat([value[half:], chat[name]]) for name, value in signals.items()}
    seen = torch.cat([outcome[half:], chat_outcome])
    online, fixed = OnlineCalibration(table), table.predict(stream)
    followed, drift = torch.zeros_like(seen), torch.zeros_like(seen)
    for start in range(0, len(seen), BLOCK):  # about what a step of a batch reaches
        part = slice(start, start + BLOCK)
        here = {name: value[part] for name, value in stream.items()}
        followed[part], drift[part] = online.table.predict(here), online.drift
        online.learn(here, seen[part])
    switch = len(outcome) - half
    print(f"calibrated on {half} positions; the text changes after {switch}\n")
    print("| positions | text | accepted | fixed | followed | Brier fixed | Brier followed | drift |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for start in range(0, len(seen), STRETCH):
        part = slice(start, min(start + STRETCH, len(seen)))
        text = "code" if part.stop <= switch else "chat" if start >= switch else "both"
        errors = [float(((p[part] - seen[part]) ** 2).mean()) for p in (fixed, followed)]
        means = [float(values[part].mean()) for values in (seen, fixed, followed)]
        cells = [f"{value:.3f}" for value in (*means, *errors)] + [f"{float(drift[part][-1]):+.3f}"]
        print(f"| {start}–{part.stop} | {text} |", " | ".join(cells), "|")
    if options.plot is not None:
        draw(seen, fixed, followed, switch, options.plot)


def draw(seen: torch.Tensor, fixed: torch.Tensor, followed: torch.Tensor, switch: int, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    kernel = torch.ones(1, 1, STRETCH) / STRETCH
    for name, values in (("accepted", seen), ("fixed calibration", fixed), ("followed", followed)):
        axes.plot(torch.nn.functional.conv1d(values[None, None].float(), kernel)[0, 0], label=name)
    axes.axvline(switch, color="grey", linestyle=":")
    axes.set(xlabel="position", ylabel=f"acceptance, mean of {STRETCH}", title="A change from code to chat")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
