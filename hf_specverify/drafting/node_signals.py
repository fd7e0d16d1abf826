"""What a drafter says of the nodes of a tree whose tokens are not drawn."""

from __future__ import annotations

from torch import Tensor

from ..scheduling import signal_values  # the module, whose own imports may have led here


def signals_of_children(names: tuple[str, ...], law: Tensor, chances: Tensor) -> dict[str, Tensor]:
    """Signals of some children of the nodes of a level.

    Args:
        names: of the draft's own signals.
        law: (A, F, V) the draft's log probabilities after F nodes.
        chances: (A, F, C) those of the children that were taken.

    Returns:
        For every name (A, F, C) float32; what is of a node's law is the same for all its children.
    """
    values = {"q": chances.exp()}
    of_law = [name for name in names if name != "q"]
    if of_law:
        found = signal_values.vocabulary_signals(of_law, law.exp())
        values |= {name: value.expand(chances.shape) for name, value in found.items()}
    return {name: values[name] for name in names}
