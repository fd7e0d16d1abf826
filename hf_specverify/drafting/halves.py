"""A model in two halves: the first layers, which draft, and the rest, which goes on from where the first ones ended."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .layer_cut import cut_layers, layer_lists, number_of_layers
from .shared_copy import shared_copy


class Halves:
    """Both halves of a model over its own weights; the model is not changed.

    Layers keep their numbers, so the halves share one cache. A forward of `first` leaves what its last layer gave in
    `states`; a forward of `rest` takes `states` for it, and runs none of the first layers. It is the whole model but
    for that, so masks, positions and scalings are the model's own.

    Args:
        model: a Transformers causal language model.
        num_layers: of the first half.
        first: `cut_layers` of the model, with whatever head; a copy that may be changed. None makes one.

    Attributes:
        first: the first layers with the final norm and a head.
        rest: the model without them.
        states: (B, n, H), the last states of the first half, before the norm.

    Raises:
        ValueError: if the model can't be divided.
    """

    def __init__(self, model: Any, num_layers: int, first: Any = None) -> None:
        self.states: Tensor | None = None
        self.first = cut_layers(model, num_layers) if first is None else first
        self.rest = shared_copy(model)
        self._the_list(self.first)[num_layers - 1].register_forward_hook(self._keep)
        whole = self._the_list(self.rest)
        for index in range(num_layers):
            whole[index] = _Done(whole[index], self)

    def _the_list(self, model: Any) -> nn.ModuleList:
        lists = layer_lists(model, number_of_layers(model))
        if len(lists) != 1:
            names = [name for _, name in lists]
            raise ValueError(f"{type(model).__name__} has several lists of layers, {names}; allowed: one")
        parent, name = lists[0]
        found: nn.ModuleList = parent._modules[name]
        return found

    def _keep(self, layer: nn.Module, _: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise ValueError(
                f"the layers of the type {type(layer).__name__} give a {type(output).__name__}; allowed: hidden states"
            )
        self.states = output


class _Done(nn.Module):
    """Stands where a layer was that has been run already: it gives the states that the first half ended with."""

    def __init__(self, layer: nn.Module, halves: Halves) -> None:
        super().__init__()
        object.__setattr__(self, "layer", layer)  # no submodule of it
        self.halves = halves

    def __getattr__(self, name: str) -> Any:
        """Some models ask their layers what kind they are."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["layer"], name)

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """(B, n, H)."""
        assert self.halves.states is not None
        return self.halves.states
