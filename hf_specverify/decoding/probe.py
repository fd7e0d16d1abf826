"""Which runner is right for a model: tried out on the model itself, once per model.

The configuration says what a model claims; a tiny ragged forward against the plain one says what its code does. Some
families ignore a 4D mask, or index their own buffers by cache slot, without an error: only the numbers show it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .hole_runner import HoleRunner
from .masks import TreeRegion
from .row_runner import RowRunner
from .runner import OutputFlags, Runner
from .single_runner import SingleRunner
from .timing import Stopwatch
from .traits import ModelTraits, input_device, model_traits


@dataclass(frozen=True)
class Layout:
    """What was found exact for a model: its runner, and whether that takes trees and packs rows."""

    runner: type[Runner]
    takes_trees: bool = False
    packs: bool = False


# By model object and attention implementation: two models of one class may differ in what matters (alibi, windows).
_CHOSEN: WeakKeyDictionary[Any, dict[str, Layout]] = WeakKeyDictionary()
_LENGTHS, _BLOCK, _ACCEPTED = (3, 7), 4, (1, 3)
_FLOOR = {torch.float64: 1e-9, torch.float32: 2e-5}  # relative to the largest logit; 16 bit types: 3e-2
_CEILING = {torch.float64: 1e-6, torch.float32: 1e-2}  # of what noise may excuse; 16 bit types: 1e-1


def make_runner(model: Any, stopwatch: Stopwatch, phase: str, flags: OutputFlags | None = None) -> Runner:
    """The fastest runner that is exact for `model`.

    Raises:
        ValueError: if none is; the message names the layer types.
    """
    traits = model_traits(model)
    layout = _layout_of(model, traits)
    runner = layout.runner(model, traits, stopwatch, phase, flags)
    runner.takes_trees, runner.packs = layout.takes_trees, layout.packs
    return runner


def take_layout(copied: Any, model: Any) -> None:
    """Run a copy in what was found exact for its model: its own rounding would hide what is.

    Raises:
        ValueError: if nothing is exact for the model.
    """
    traits = model_traits(model)
    copied.exact_layouts = {traits.attention: _layout_of(model, traits)}  # on the object: copies of it have them too


def _layout_of(model: Any, traits: ModelTraits) -> Layout:
    if traits.attention in getattr(model, "exact_layouts", {}):
        known: Layout = model.exact_layouts[traits.attention]
        return known
    chosen = _CHOSEN.setdefault(model, {})
    if traits.attention not in chosen:
        # Which layout is exact is a matter of the decoder, which a trimmed model shares with the whole one.
        whole = getattr(model, "trimmed_from", None)
        chosen[traits.attention] = _choose(model, traits) if whole is None else _layout_of(whole, traits)
    return chosen[traits.attention]


def _choose(model: Any, traits: ModelTraits) -> Layout:
    tried: list[str] = []
    with torch.no_grad():
        try:
            sequences, reference, noise = _reference(model, traits)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise ValueError(_refusal(model, traits, [f"row by row ({error!r})"])) from error
        tolerance = _tolerance(model, noise)
        for runner in _candidates(traits):
            distance, why = _error(partial(_ragged_logits, runner, model, traits, sequences), reference)
            if distance <= tolerance and runner is RowRunner:
                return _row_layout(model, traits, sequences, reference, tolerance)
            if distance <= tolerance:
                warnings.warn(_notice(model, traits, runner, tried), UserWarning, stacklevel=2)
                return Layout(runner)
            tried.append(f"{runner.layout} ({why})")
    raise ValueError(_refusal(model, traits, tried))


def find_fault(model: Any, kind: Callable[..., Runner], packs: bool) -> str | None:
    """Why a runner in the row cache is not exact for `model`; None if it is.

    Args:
        model: a model for which the row cache itself is exact.
        kind: makes the runner, from what a `Runner` takes up to `phase`.
        packs: whether it is to pack rows.
    """
    traits = model_traits(model)
    with torch.no_grad():
        sequences, reference, noise = _reference(model, traits)
        distance, why = _error(partial(_ragged_logits, kind, model, traits, sequences, packs), reference)
    return None if distance <= _tolerance(model, noise) else why


def _tolerance(model: Any, noise: float) -> float:
    return max(_FLOOR.get(model.dtype, 3e-2), min(8 * noise, _CEILING.get(model.dtype, 1e-1)))


def _refusal(model: Any, traits: ModelTraits, tried: list[str]) -> str:
    layers = sorted({*traits.patterns, *traits.unknown_layer_types})
    training = "; it is in training mode, call its eval() first" if model.training else ""
    return (
        f"{type(model).__name__} can't be rolled back exactly with any cache layout, which speculative decoding needs "
        f"(tried: {', '.join(tried)}; its layer types are {layers}{training})"
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
    device = input_device(model)
    sizes = [length + accepted + 2 for length, accepted in zip(_LENGTHS, _ACCEPTED, strict=True)]
    high = min(traits.vocabulary_size, 1000)
    sequences = [torch.randint(high, (size,), generator=generator).to(device) for size in sizes]
    reference = [_plain_logits(model, traits, row)[-2:] for row in sequences]
    runner = SingleRunner(model, traits, Stopwatch(), "target")
    row = sequences[-1]
    nothing = torch.ones(1, len(row), dtype=torch.bool)
    runner.prefill(row[None, :-2], nothing[:, :-2], nothing, None)
    cached = runner.forward(row[None, -2:], [2]).logits[0].float()
    return sequences, reference, _relative(cached, reference[-1])


def _plain_logits(model: Any, traits: ModelTraits, row: Tensor) -> Tensor:
    positions = {"position_ids": torch.arange(len(row), device=row.device)[None]} if traits.takes_position_ids else {}
    logits: Tensor = model(input_ids=row[None], use_cache=False, return_dict=True, **positions).logits
    return logits[0].float()


def _row_layout(
    model: Any, traits: ModelTraits, sequences: list[Tensor], reference: list[Tensor], tolerance: float
) -> Layout:
    """The row cache, with what else it can do for this model."""
    trees, _ = _error(lambda: _tree_logits(RowRunner(model, traits, Stopwatch(), "target"), sequences), reference)
    packed = float("inf")
    if traits.attention == "sdpa":
        packed, _ = _error(lambda: _ragged_logits(RowRunner, model, traits, sequences, packs=True), reference)
    return Layout(RowRunner, trees <= tolerance, packed <= tolerance)


def _error(run: Callable[[], Tensor], reference: list[Tensor]) -> tuple[float, str]:
    """Largest relative error of the logits that a layout gives for the last two tokens, and the same in words."""
    try:
        logits = run()
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Whatever a model raises when it is handed an unusual mask or cache, it means: not this layout.
        return float("inf"), repr(error)
    distance = max(_relative(ours, right) for ours, right in zip(logits, reference, strict=True))
    return distance, f"relative error {distance:.1e}"


def _relative(ours: Tensor, right: Tensor) -> float:
    error = (ours - right).abs().max() / right.abs().max().clamp_min(1e-12)
    return float(error) if bool(torch.isfinite(error)) else float("inf")


def _prefilled(runner: Runner, sequences: list[Tensor]) -> Tensor:
    """Give the runner the two rows' prompts; what may follow as a block, (2, _BLOCK) ids, right up to _ACCEPTED."""
    device, width = sequences[0].device, max(_LENGTHS)
    prompt = torch.zeros(2, width, dtype=torch.long, device=device)
    valid = torch.zeros(2, width, dtype=torch.bool, device=device)
    for row, length in enumerate(_LENGTHS):
        prompt[row, width - length :], valid[row, width - length :] = sequences[row][:length], True
    runner.prefill(prompt, valid, valid, None)
    block = torch.zeros(2, _BLOCK, dtype=torch.long, device=device)
    for row, (length, accepted) in enumerate(zip(_LENGTHS, _ACCEPTED, strict=True)):
        block[row, :accepted] = sequences[row][length : length + accepted]
    return block


def _ragged_logits(
    kind: Callable[..., Runner], model: Any, traits: ModelTraits, sequences: list[Tensor], packs: bool = False
) -> Tensor:
    """Feed a block of which each row keeps another number of tokens, then two more tokens."""
    runner = kind(model, traits, Stopwatch(), "target")
    block = _prefilled(runner, sequences)
    runner.forward(block, [_BLOCK, _BLOCK])
    runner.rewind([max(_LENGTHS) + accepted for accepted in _ACCEPTED])
    last = torch.stack([row[-2:] for row in sequences])
    if not packs:
        return runner.forward(last, [2, 2]).logits.float()
    # Filler, so that there is something to pack; the block's tokens stand behind those that count.
    runner.packs = True
    return runner.forward(torch.cat([last, block[:, :1], block[:, :1]], dim=1), [2, 2]).logits[:, :2].float()


def _tree_logits(runner: Runner, sequences: list[Tensor]) -> Tensor:
    """The same with a tree of two branches, of which the second is kept: its nodes are moved to the front."""
    block = _prefilled(runner, sequences)
    base, last = list(runner.lengths), torch.stack([row[-2:] for row in sequences])
    runner.forward(block, list(_ACCEPTED))
    runner.rewind([length + accepted for length, accepted in zip(base, _ACCEPTED, strict=True)])
    # Slots of the region: another token, the last but one token, a child of the other, the last token.
    tree = torch.stack([block[:, 0], last[:, 0], block[:, 1], last[:, 1]], dim=1)
    visible = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    region = TreeRegion(torch.tensor([[0, 0, 1, 1]] * 2), visible.repeat(2, 1, 1)).to(tree.device)
    base = list(runner.lengths)
    scored = runner.forward(tree, [4, 4], region=region).logits[:, 1]
    runner.keep(base, torch.tensor([[1, 3], [1, 3]]))
    # The last token once more, behind the moved node: its logits show whether the move was right.
    runner.rewind([length + 1 for length in base])
    again = runner.forward(last[:, 1:], [1, 1]).logits[:, 0]
    return torch.stack([scored, again], dim=1).float()
