"""Early exit: the target's own first layers draft, in the target's own cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from ..decoding.probe import find_fault
from ..decoding.row_runner import RowRunner
from ..decoding.runner import Runner
from ..decoding.split_runner import ReadFirst, SplitRunner
from ..decoding.traits import ModelTraits
from .draft_model import DraftModel
from .drafter import Drafter, DraftingCall, DraftSession, one_path_only
from .exit_reader import ExitReader
from .halves import Halves
from .kept_ids import Text
from .layer_cut import cut_layers, number_of_layers
from .model_chains import ModelSession
from .trimmed import share_head, trim_vocabulary

# By model object: what the numbers said of each attention implementation and number of layers; None: they are right.
_FAULTS: WeakKeyDictionary[Any, dict[tuple[str, int, bool], str | None]] = WeakKeyDictionary()


class EarlyExit(Drafter):
    """Drafts with the target's own first layers, its final norm and its head (LayerSkip, 2404.16710, §4.3).

    There is no second model and no second cache: the first layers write their part of the target's cache while they
    draft, and verification runs the other layers only, on the states that the first ones left. So a drafted token
    passes every layer once. What the first layers say of the next token is poor in most models, and good in those that
    were trained for it (LayerSkip checkpoints); the output has the target's law in any case.

    Drafts single chains. It needs a target in the row cache whose layers are one list, called in order; which others
    are refused is found by comparing logits, once per model. The target is only called, and not changed.

    Args:
        num_layers: layers that draft, fewer than the target has.
        keep: tokens that the drafting head scores, see `trim_vocabulary`; None: all.
        counts, text, tokenizer, ids: which tokens are kept, as in `trim_vocabulary`.

    Raises:
        TypeError, ValueError: for values that are not allowed; those that depend on the target, in its first call.
    """

    signals = DraftModel.signals

    def __init__(
        self,
        num_layers: int,
        keep: int | None = None,
        *,
        counts: Tensor | Mapping[int, int] | None = None,
        text: Text | None = None,
        tokenizer: Any = None,
        ids: Tensor | None = None,
    ) -> None:
        for name, value in (("num_layers", num_layers), ("keep", keep)):
            if type(value) is not int and not (name == "keep" and value is None):
                raise TypeError(f"{name}={value!r}: allowed are integers from 1{' and None' if name == 'keep' else ''}")
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: allowed are integers from 1")
        given = {"keep": keep, "counts": counts, "text": text, "tokenizer": tokenizer, "ids": ids}
        self.num_layers, self.keep = num_layers, keep
        self._trimming = {name: value for name, value in given.items() if value is not None}
        if (keep is None) == (ids is None) and self._trimming:
            raise ValueError(
                f"{sorted(self._trimming)}: allowed are keep=, alone or with counts= or text=, or ids= alone"
            )
        # By target, and the dtype that it had: a few rows of its head.
        self._trimmed: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """How many layers draft, and what they score."""
        count = self.keep or len(self._trimming.get("ids", ()))
        return f"early exit after {self.num_layers} layers" + (f", {count} tokens" if count else "")

    def drafting_model(self, target: Any) -> Any:
        """The first layers with their head, a copy over the target's weights."""
        return self._trim(target, cut_layers(target, self.num_layers))

    def _trim(self, target: Any, first: Any) -> Any:
        if not self._trimming:
            return first
        known = self._trimmed.get(target)
        if known is None or known[0] != target.dtype:
            known = target.dtype, trim_vocabulary(first, **self._trimming)
            self._trimmed[target] = known
        # The rows are kept; the layers are those that the target has now, adapters included.
        return share_head(first, known[1])

    def target_runner(self, runner: Runner) -> Runner:
        """The target's runner, with halves.

        Raises:
            ValueError: if the target can't be divided after so many layers; the message says why.
        """
        model, kind = runner.model, type(runner.model).__name__
        total = number_of_layers(model)
        if self.num_layers >= total:
            raise ValueError(
                f"num_layers={self.num_layers}: allowed are integers from 1 to {total - 1}, {kind} has {total} layers"
            )
        if not isinstance(runner, RowRunner):
            raise ValueError(
                f"EarlyExit: {kind} runs in the layout '{runner.layout}', whose layers can't be ahead of each other; "
                "allowed are targets in the row cache, and drafts of their own, such as cut_layers(target, n)"
            )
        fault = self._fault(model, runner.traits)
        if fault is not None:
            raise ValueError(
                f"EarlyExit(num_layers={self.num_layers}): {kind} can't go on after its first layers ({fault}); "
                "allowed are targets whose layers are called in order, and drafts of their own, such as "
                "cut_layers(target, n)"
            )
        split = SplitRunner(
            model, runner.traits, runner.stopwatch, runner.phase, runner.flags,
            halves=lambda: Halves(model, self.num_layers, self.drafting_model(model)),
        )  # fmt: skip
        split.takes_trees = runner.takes_trees
        split.packs = runner.packs and self._fault(model, runner.traits, packs=True) is None
        return split

    def _fault(self, model: Any, traits: ModelTraits, packs: bool = False) -> str | None:
        """What the first use of a model has shown."""
        known, key = _FAULTS.setdefault(model, {}), (traits.attention, self.num_layers, packs)
        if key not in known:
            known[key] = find_fault(model, partial(ReadFirst, halves=partial(Halves, model, self.num_layers)), packs)
        return known[key]

    def start(self, call: DraftingCall) -> DraftSession:
        """Begin a call; the prompt is in the target's cache."""
        one_path_only(self, call)
        assert isinstance(call.runner, SplitRunner)
        draws = call.sampling and call.draft_temperature != 0
        return ModelSession(ExitReader(call.runner, call), call, "independent" if draws else "deterministic")
