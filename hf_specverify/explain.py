"""What a set-up will cost and bring, in figures and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .drafting.int8_copy import can_be_int8
from .packing import can_be_packed
from .scheduling.auto import AutoSchedule
from .scheduling.calibration import CalibrationTable
from .scheduling.call_costs import CallCosts
from .scheduling.cost import CostModel
from .scheduling.simulate import simulated_rates

LONGEST = 8
WORTH = 1.05  # below this expected gain the advice is not to speculate
BLOCK = 4  # tokens whose pass is compared with that of one
DEAR_BLOCK = 1.25  # from this ratio on packed weights are named
DEAR_DRAFT = 0.15  # from this ratio on an int8 copy is
COMPANION_BITS = 0.02  # a companion that tells less than this is not worth its pass


@dataclass(frozen=True)
class Placement:
    """Where one model is.

    Attributes:
        role: target, draft or companion.
        model: its class.
        parameters: how many, packed ones as they are stored.
        size: bytes of parameters and buffers.
        dtypes, devices: of its parameters.
        milliseconds: of a forward over one token of one row; None where it was not measured.
    """

    role: str
    model: str
    parameters: int
    size: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    milliseconds: float | None


@dataclass(frozen=True)
class Expectation:
    """What the costs promise at one batch size.

    Attributes:
        batch_size: rows.
        plain: tokens per second without a draft.
        length: the draft length that promises most; 0 is none.
        speculative: tokens per second at the best length above 0.
        gain: speculative / plain.
        modes: tokens per second of each way of scheduling, simulated from the calibration ("plain", "fixed", "stop",
            "cut", "cut with companion"); empty without one.
    """

    batch_size: int
    plain: float
    length: int
    speculative: float
    gain: float
    modes: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    """All of it; `advice` says in words what follows."""

    placements: tuple[Placement, ...]
    acceptance: float
    acceptance_is_measured: bool
    expectations: tuple[Expectation, ...]
    advice: tuple[str, ...]


def explain(
    target: Any,
    draft: Any = None,
    companion: Any = None,
    *,
    costs: CostModel,
    calibration: CalibrationTable | None = None,
    companion_bits: float | None = None,
    batch_sizes: Sequence[int] = (1, 4, 8, 16, 32),
    context: int = 256,
) -> Explanation:
    """Say where the models are, what they cost, and what to expect of them.

    Args:
        target: the target model.
        draft: the draft model; None is prompt lookup, whose drafts are free.
        companion: the companion model, or None.
        costs: measured on this machine.
        calibration: for the acceptance; without one .7 is assumed, and the advice says so.
        companion_bits: what the companion adds (`InformationTable.companion_bits`), if that is known.
        batch_sizes: to predict for.
        context: tokens of a row.
    """
    models = {"target": target, "draft": draft, "companion": companion}
    placements = tuple(_placement(role, model, costs, context) for role, model in models.items() if model is not None)
    mean = None
    if calibration is not None:
        mean = calibration.mean
    schedule = AutoSchedule(CallCosts(costs, LONGEST), mean)
    schedule.started = True  # what a step brings; reading the prompt comes once
    expectations = tuple(_expectation(schedule, calibration, size, context) for size in batch_sizes)
    acceptance = float(schedule.acceptance()[0])
    advice = [
        *_advice(placements, expectations, acceptance, mean is not None, companion is not None, companion_bits),
        *_advice_on_packing(target, costs, context),
        *_advice_on_int8(target, draft, costs, context),
    ]
    return Explanation(placements, acceptance, mean is not None, expectations, tuple(advice))


def _placement(role: str, model: Any, costs: CostModel, context: int) -> Placement:
    parameters = list(model.parameters())
    size = sum(part.numel() * part.element_size() for part in [*parameters, *model.buffers()])
    return Placement(
        role,
        type(model).__name__,
        sum(part.numel() for part in parameters),
        size,
        tuple(sorted({str(part.dtype).removeprefix("torch.") for part in parameters})),
        tuple(sorted({str(part.device) for part in parameters})),
        1000 * costs.latency(1, 1, context, role) if role in costs.roles else None,
    )


def _expectation(
    schedule: AutoSchedule, calibration: CalibrationTable | None, batch_size: int, context: int
) -> Expectation:
    rates = schedule.rates(batch_size, context, float("inf"))
    best = int(rates[1:].argmax()) + 1
    gain = float(rates[best] / rates[0])
    modes = {} if calibration is None else simulated_rates(calibration, schedule.prices, batch_size, context)
    return Expectation(batch_size, float(rates[0]), best if gain > 1 else 0, float(rates[best]), gain, modes)


def _advice(
    placements: Sequence[Placement],
    expectations: Sequence[Expectation],
    acceptance: float,
    is_measured: bool,
    has_companion: bool,
    companion_bits: float | None,
) -> list[str]:
    source = "measured" if is_measured else "assumed, not measured: `specverify calibrate` measures it"
    advice = [f"Acceptance {acceptance:.2f} ({source})."]
    times = {placement.role: placement.milliseconds for placement in placements}
    target, draft = times.get("target"), times.get("draft")
    if target and draft:
        advice.append(f"A draft token costs {draft / target:.2f} of a target pass at batch 1.")
    for expectation in expectations:
        where = f"Batch {expectation.batch_size}: expected {expectation.gain:.1f}×"
        if expectation.gain < 1:
            advice.append(f"{where} of plain decoding, a loss: don't speculate here (`auto` will not).")
        elif expectation.gain < WORTH:
            advice.append(f"{where} of plain decoding: not worth a draft model.")
        else:
            advice.append(f"{where} of plain decoding with {expectation.length} draft tokens.")
        advice += _advice_on_modes(expectation)
    if has_companion and companion_bits is None:
        advice.append("What the companion adds is not known: `specverify calibrate --companion` tells.")
    elif has_companion and companion_bits is not None:
        verdict = "leave it out" if companion_bits < COMPANION_BITS else "it may pay at large batches with cheap drafts"
        advice.append(f"The companion adds {companion_bits:.3f} bits: {verdict}.")
    return advice


def _advice_on_packing(target: Any, costs: CostModel, context: int) -> list[str]:
    """On a CPU: whether a block costs much more than a token, and what may help."""
    ratio = costs.latency(BLOCK, 1, context) / costs.latency(1, 1, context)
    if ratio < DEAR_BLOCK or not can_be_packed(target):
        return []
    return [
        f"A target pass over {BLOCK} tokens costs {ratio:.1f} times one over a single token: try "
        f"`sv.pack_weights(target)`, in commands `--dtype {str(target.dtype).removeprefix('torch.')}+packed`."
    ]


def _advice_on_int8(target: Any, draft: Any, costs: CostModel, context: int) -> list[str]:
    """On a CPU: whether the draft is dear, and could multiply in int8. Layers of the target, drafting, can't."""
    if "draft" not in costs.roles or not can_be_int8(draft):
        return []
    if draft.get_input_embeddings() is target.get_input_embeddings():
        return []
    form = "int8-copy" + "".join(
        f"+{cut}:{value if isinstance(value, int) else len(value)}"
        for cut, value in (("layers", getattr(draft, "kept_layers", None)), ("trim", getattr(draft, "kept_ids", None)))
        if value is not None
    )
    ratio = costs.latency(1, 1, context, "draft") / costs.latency(1, 1, context)
    if ratio < DEAR_DRAFT:
        return []
    return [
        f"A draft pass costs {ratio:.2f} of a target pass: try `sv.int8_copy(draft)`, in commands "
        f"`--draft-quantization {form}`."
    ]


def _advice_on_modes(expectation: Expectation) -> list[str]:
    """What scheduling would add to the better of plain decoding and the best fixed length, if it is worth saying."""
    modes = dict(expectation.modes)
    if not modes:
        return []
    base = max(modes.pop("plain"), modes.pop("fixed"))
    ratios = {name: rate / base for name, rate in modes.items()}
    best = max(ratios, key=ratios.__getitem__, default=None)
    if best is None:
        return []
    shown = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in ratios.items())
    verdict = f"`{best}` pays" if ratios[best] >= WORTH else "no schedule is worth its name here"
    return [f"  over the best of plain and fixed: {shown}: {verdict}."]
