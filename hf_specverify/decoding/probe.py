"""Which runner is right for a model: tried out on the model itself, once per class.

The configuration says what a model claims; a tiny ragged forward against the plain one says what its code does. Some
families ignore a 4D mask, or index their own buffers by cache slot, without an error: only the numbers show it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .hole_runner import HoleRunner
from .row_runner import RowRunner
from .runner import OutputFlags, Runner
from .single_runner import SingleRunner
from .timing import Stopwatch
from .traits import ModelTraits, model_traits

_CHOSEN: dict[tuple[object, ...], type[Runner]] = {}
_LENGTHS, _BLOCK, _ACCEPTED = (3, 7), 4, (1, 3)
_FLOOR = {torch.float64: 1e-9, torch.float32: 2e-5}  # relative to the largest logit; 16 bit types: 3e-2


def make_runner(model: Any, stopwatch: Stopwatch, phase: str, flags: OutputFlags | None = None) -> Runner:
    """The fastest runner that is exact for `model`.

    Raises:
        ValueError: if none is; the message names the layer types.
    """
    traits = model_traits(model)
    key = (type(model), traits.attention, tuple(traits.patterns.items()), traits.unknown_layer_types, model.dtype)
    if key not in _CHOSEN:
        _CHOSEN[key] = _choose(model, traits)
    return _CHOSEN[key](model, traits, stopwatch, phase, flags)


def _choose(model: Any, traits: ModelTraits) -> type[Runner]:
    with torch.no_grad():
        sequences, reference, noise = _reference(model, traits)
        floor = _FLOOR.get(model.dtype, 3e-2)
        tolerance = max(floor, min(8 * noise, 10 * floor))
        tried: list[str] = []
        for runner in _candidates(traits):
            error = _error(runner, model, traits, sequences, reference)
            if error <= tolerance:
                if runner is not RowRunner:
                    warnings.warn(_notice(model, traits, runner, tried), UserWarning, stacklevel=2)
                return runner
            tried.append(f"{runner.layout} (relative error {error:.1e})")
    layers = f"; its layer types are {sorted({*traits.patterns, *traits.unknown_layer_types})}"
    raise ValueError(
        f"{type(model).__name__} can't be rolled back exactly with any cache layout, which speculative decoding needs "
        f"(tried: {', '.join(tried)}{layers})"
    )


def _notice(model: Any, traits: ModelTraits, runner: type[Runner], tried: list[str]) -> str:
    why = f"after {', '.join(tried)}" if tried else f"for its layers {sorted(traits.unknown_layer_types)}"
    if traits.is_flash:
        why = f"since {traits.attention} takes 2D masks only"
    return f"{type(model).__name__} runs in the slower layout '{runner.layout}' {why}."


def _candidates(traits: ModelTraits) -> list[type[Runner]]:
    if traits.unknown_layer_types:
        return [SingleRunner]
    runners: list[type[Runner]] = [] if traits.is_flash else [RowRunner]
    # Holes widen the distances that a window counts, and a probe shorter than the window would not see it.
    return [*runners, *([HoleRunner] if traits.sees_everything else []), SingleRunner]


def _reference(model: Any, traits: ModelTraits) -> tuple[list[Tensor], list[Tensor], float]:
    """Token sequences, the logits of their last two tokens by plain uncached forwards, and the plain noise.

    The noise is how far the host's own cached decoding of one row is from its uncached forward.
    """
    generator = torch.Generator().manual_seed(0)
    device = model.get_input_embeddings().weight.device
    sizes = [length + accepted + 2 for length, accepted in zip(_LENGTHS, _ACCEPTED, strict=True)]
    high = min(traits.vocabulary_size, 1000)
    sequences = [torch.randint(high, (size,), generator=generator).to(device) for size in sizes]
    reference = [
        model(input_ids=row[None], use_cache=False, return_dict=True).logits[0, -2:].float() for row in sequences
    ]
    runner = SingleRunner(model, traits, Stopwatch(), "target")
    row = sequences[-1]
    nothing = torch.ones(1, len(row), dtype=torch.bool)
    runner.prefill(row[None, :-2], nothing[:, :-2], nothing, None)
    cached = runner.forward(row[None, -2:], [2]).logits[0].float()
    return sequences, reference, _relative(cached, reference[-1])


def _error(
    kind: type[Runner], model: Any, traits: ModelTraits, sequences: list[Tensor], reference: list[Tensor]
) -> float:
    """Largest relative error of the logits after a ragged block with rejections; infinite if the model refuses."""
    try:
        logits = _ragged_logits(kind(model, traits, Stopwatch(), "target"), sequences)
    except Exception:
        # Whatever a model raises when it is handed an unusual mask or cache, it means: not this layout.
        return float("inf")
    return max(_relative(ours, right) for ours, right in zip(logits, reference, strict=True))


def _relative(ours: Tensor, right: Tensor) -> float:
    error = (ours - right).abs().max() / right.abs().max().clamp_min(1e-12)
    return float(error) if bool(torch.isfinite(error)) else float("inf")


def _ragged_logits(runner: Runner, sequences: list[Tensor]) -> Tensor:
    """Prefill two rows, feed a block of which each row keeps another number of tokens, then two more tokens."""
    device, width = sequences[0].device, max(_LENGTHS)
    prompt = torch.zeros(2, width, dtype=torch.long, device=device)
    valid = torch.zeros(2, width, dtype=torch.bool, device=device)
    for row, length in enumerate(_LENGTHS):
        prompt[row, width - length :], valid[row, width - length :] = sequences[row][:length], True
    runner.prefill(prompt, valid, valid, None)
    block = torch.zeros(2, _BLOCK, dtype=torch.long, device=device)
    for row, (length, accepted) in enumerate(zip(_LENGTHS, _ACCEPTED, strict=True)):
        block[row, :accepted] = sequences[row][length : length + accepted]
    runner.forward(block, [_BLOCK, _BLOCK])
    runner.rewind([width + accepted for accepted in _ACCEPTED])
    return runner.forward(torch.stack([row[-2:] for row in sequences]), [2, 2]).logits.float()
