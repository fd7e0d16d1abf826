"""What can be said of one generated sequence by its tokens alone: how it ended, and how much it repeats itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

ENDINGS = ("eos", "limit", "loop", "stop")
"""By an end token; at the length limit; at the limit, repeating itself; by another stopping criterion."""

LOOP_TOKENS, LOOP_REPEATS, LONGEST_PERIOD = 16, 3, 64


def ending(tokens: Sequence[int], eos: Collection[int], limit: int) -> str:
    """Say how a sequence ended: one of `ENDINGS`.

    Args:
        tokens: the new tokens, the end token included, without padding.
        eos: ids that end a text.
        limit: the largest number of new tokens.
    """
    if tokens and tokens[-1] in eos:
        return "eos"
    if len(tokens) < limit:
        return "stop"
    return "limit" if loop_period(tokens) is None else "loop"


def loop_period(tokens: Sequence[int]) -> int | None:
    """The period with which the end of a sequence repeats itself, or None.

    It is the smallest one, up to `LONGEST_PERIOD`, that the last tokens keep to: `LOOP_REPEATS` periods, and at least
    `LOOP_TOKENS` tokens.
    """
    for period in range(1, LONGEST_PERIOD + 1):
        span = max(LOOP_TOKENS, LOOP_REPEATS * period)
        if span > len(tokens):
            return None
        tail = list(tokens[len(tokens) - span :])
        if tail[period:] == tail[:-period]:
            return period
    return None


def distinct_share(tokens: Sequence[int], n: int) -> float:
    """Share of the n-grams of a sequence that are different, distinct-n (Li et al. 1510.03055); 1.0 without an n-gram.

    Raises:
        ValueError: if n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n={n}: allowed are integers from 1")
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repetition(tokens: Sequence[int]) -> float:
    """Share of the 4-grams that stood in the sequence before, seq-rep-4 (Welleck et al. 1908.04319)."""
    return 1 - distinct_share(tokens, 4)


def real_tokens(row: Sequence[int], eos: Collection[int], pad: int | None) -> list[int]:
    """The new tokens of a row of a batch, up to the first end token or without the padding behind its end.

    Where the padding is an end token, a row that another criterion stopped can't be told from one that ended.

    Args:
        row: new tokens and padding.
        eos: ids that end a text.
        pad: the id of padding, or None.
    """
    for place, token in enumerate(row):
        if token in eos:
            return list(row[: place + 1])
    kept = len(row)
    while kept and row[kept - 1] == pad:
        kept -= 1
    return list(row[:kept])
