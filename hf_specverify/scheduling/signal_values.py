"""The values of signals, from the laws of draft and companion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ..verification.base import acceptance_probability, wide
from .signals import SIGNALS

# Float32 numbers (16 MB) that the rows looked at together may have, as in the loop's verification.
CHUNK_ELEMENTS = 1 << 22


def compute_signals(
    names: Iterable[str],
    tokens: Tensor,
    q: Tensor | None,
    c: Tensor | None = None,
    lookup: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Compute signals of the drawn tokens of a batch of blocks, a few rows of the laws at a time.

    Args:
        names: the signals wanted.
        tokens: (B, L) long, the drawn tokens; any valid id behind a row's own.
        q: (B, L, V), the laws that they were drawn from; None where they are deterministic, their laws one-hot.
        c: (B, L, V), the companion's laws; None without one.
        lookup: the signals that no law holds, of a lookup or an acceptance head, each (B,) or (B, L).

    Returns:
        For every name (B, L) float32, never NaN for laws without NaN.

    Raises:
        ValueError: for an unknown name, a signal that needs what is not there, or shapes that disagree.
    """
    wanted = _checked(names, tokens, q, c, lookup)
    values = {name: torch.empty(tokens.shape, device=tokens.device) for name in wanted}
    size = max((law.shape[-1] for law in (q, c) if law is not None), default=1)
    step = max(1, CHUNK_ELEMENTS // size)
    flat = tokens.reshape(-1)
    for start in range(0, flat.shape[0], step):
        part = slice(start, start + step)
        q_rows, c_rows = (None if law is None else wide(law.reshape(-1, size)[part]) for law in (q, c))
        for name in wanted:
            if name in _FORMULAS:
                values[name].view(-1)[part] = _FORMULAS[name](flat[part], q_rows, c_rows)
    for name in wanted:
        if name == "position":
            values[name][:] = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        elif name not in _FORMULAS and lookup is not None:
            given = lookup[name].to(tokens.device)
            values[name][:] = given[:, None] if given.ndim == 1 else given
    return values


def vocabulary_signals(names: Iterable[str], q: Tensor, c: Tensor | None = None) -> dict[str, Tensor]:
    """Compute signals for every token that could have been drawn at some positions.

    A token with q = 0 can't be drawn; its A is 1 where c > 0 and 0 elsewhere.

    Args:
        names: the signals wanted, of the draft or the companion; `position` and those that no law holds are known.
        q: (…, V), the draft's laws.
        c: (…, V), the companion's; None without one.

    Returns:
        For every name (…, V) float32 where it looks at the token, else (…, 1).

    Raises:
        ValueError: for an unknown name, or a signal that needs what is not there.
    """
    wanted = list(names)
    for name in wanted:
        if name not in _FORMULAS:
            raise ValueError(f"names must be some of {sorted(_FORMULAS)}, got {name!r}")
    if c is None and any(SIGNALS[name].needs == "companion" for name in wanted):
        raise ValueError(f"c must be given for the signals {wanted}")
    q, c = wide(q), None if c is None else wide(c)
    return {name: _at_every_token(name, q, c) for name in wanted}


def _at_every_token(name: str, q: Tensor, c: Tensor | None) -> Tensor:
    if name in _OF_LAWS:
        return _OF_LAWS[name](q, c)[..., None]
    if name == "q" or c is None:
        return q
    return acceptance_probability(c, q) if name == "A" else c


def _overlap(q: Tensor, c: Tensor | None) -> Tensor:
    assert c is not None
    return torch.minimum(q, c).sum(dim=-1).clamp(max=1)


def _margin(q: Tensor, c: Tensor | None) -> Tensor:
    top = q.topk(min(2, q.shape[-1]), dim=-1).values
    return top[..., 0] - top[..., 1] if top.shape[-1] == 2 else top[..., 0]


_OF_LAWS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "S": _overlap,
    "entropy": lambda q, c: torch.special.entr(q).sum(dim=-1).clamp(min=0),
    "max_q": lambda q, c: q.amax(dim=-1),
    "margin": _margin,
}
_OF_ONE_HOT = {"entropy": 0.0, "max_q": 1.0, "margin": 1.0, "q": 1.0}


def _at(law: Tensor, tokens: Tensor) -> Tensor:
    return law.gather(1, tokens[:, None]).squeeze(1)


def _formula(name: str) -> Callable[[Tensor, Tensor | None, Tensor | None], Tensor]:
    """From tokens (R,) and the rows (R, V) of q and c to one signal (R,)."""

    def compute(tokens: Tensor, q: Tensor | None, c: Tensor | None) -> Tensor:
        if name in _OF_ONE_HOT and q is None:
            return torch.full(tokens.shape, _OF_ONE_HOT[name], device=tokens.device)
        if name in ("q", "c") or q is None:  # S and A of a one-hot q are c(x)
            law = q if name == "q" else c
            assert law is not None
            return _at(law, tokens)
        if name == "A":
            assert c is not None
            return acceptance_probability(_at(c, tokens), _at(q, tokens))
        return _OF_LAWS[name](q, c)

    return compute


_FORMULAS = {name: _formula(name) for name in ("S", "A", "q", "entropy", "max_q", "margin", "c")}


def _checked(
    names: Iterable[str], tokens: Tensor, q: Tensor | None, c: Tensor | None, lookup: Mapping[str, Tensor] | None
) -> list[str]:
    wanted = list(names)
    if tokens.ndim != 2:
        raise ValueError(f"tokens must have the shape (B, L), got {tuple(tokens.shape)}")
    for argument, law in (("q", q), ("c", c)):
        if law is not None and (law.ndim != 3 or law.shape[:2] != tokens.shape):
            raise ValueError(f"{argument} must have the shape {(*tokens.shape, 'V')}, got {tuple(law.shape)}")
    if q is not None and c is not None and q.shape != c.shape:
        raise ValueError(f"c must have the shape of q, {tuple(q.shape)}, got {tuple(c.shape)}")
    for name in wanted:
        if name not in SIGNALS:
            raise ValueError(f"names must be some of {list(SIGNALS)}, got {name!r}")
        if SIGNALS[name].needs == "companion" and c is None:
            raise ValueError(f"c must be given for the signal {name!r}")
        if SIGNALS[name].needs in ("lookup", "acceptance") and name not in (lookup or {}):
            raise ValueError(f"lookup must hold the signal {name!r}")
    return wanted
