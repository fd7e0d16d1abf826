"""A key-value cache in which every row of a batch has its own length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class WritePlan:
    """Where the next forward writes its tokens; shared by all layers of a cache.

    `columns` is None while all rows write the same slots (prefill). Else it is (B, n): token i of row b goes to slot
    columns[b, i]; or, for a packed forward, (T,): token t goes to slot columns[t] of row `rows`[t]. `total` is the
    number of slots that attention reads; `past` the slots filled before the forward.
    """

    def __init__(self, capacity: int, batch: int) -> None:
        self.capacity, self.batch = capacity, batch
        self.columns: Tensor | None = None
        self.rows: Tensor | None = None
        self.past = 0
        self.total = 0
        self._by_device: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def uniform(self, width: int) -> None:
        """All rows append `width` tokens behind `past`."""
        self.columns, self.rows, self.total = None, None, self.past + width
        self.capacity = max(self.capacity, self.total)

    def ragged(self, columns: Tensor, total: int, rows: Tensor | None = None) -> None:
        """Row b writes at columns[b], or token t at columns[t] of row rows[t]; attention reads slots 0 to total - 1."""
        self.columns, self.rows, self.total = columns, rows, total
        self._by_device.clear()
        if total > self.capacity:
            self.capacity = max(total, self.capacity + self.capacity // 2)

    def indices(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column indices of the writes, moved once per device and forward."""
        if device not in self._by_device:
            assert self.columns is not None
            columns = self.columns.to(device)
            whole = torch.arange(columns.shape[0], device=device)[:, None]
            rows = whole if self.rows is None else self.rows.to(device)
            self._by_device[device] = (rows, columns)
        return self._by_device[device]


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, (B, heads, capacity, head size), allocated when the first states arrive."""

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeros: a masked slot must still be finite, since 0 · NaN is NaN."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._buffer(key_states, self.plan.batch)
        self.values = self._buffer(value_states, self.plan.batch)
        self.is_initialized = True

    def _buffer(self, states: Tensor, batch: int) -> Tensor:
        return states.new_zeros(batch, states.shape[1], self.plan.capacity, states.shape[3])

    def _grow(self) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._buffer(old, old.shape[0])
            new[:, :, : old.shape[2]] = old
            setattr(self, name, new)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write (B, heads, n, head size) states where the plan says; return the slots that attention reads."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys.shape[2] < self.plan.capacity:
            self._grow()
        if self.plan.columns is None:
            self.keys[:, :, self.plan.past : self.plan.total] = key_states
            self.values[:, :, self.plan.past : self.plan.total] = value_states
        else:
            rows, columns = self.plan.indices(key_states.device)
            self.keys[rows, :, columns] = self._by_token(key_states)
            self.values[rows, :, columns] = self._by_token(value_states)
        return self.keys[:, :, : self.plan.total], self.values[:, :, : self.plan.total]

    def _by_token(self, states: Tensor) -> Tensor:
        """(B, n, heads, head size), or (T, heads, head size) of a packed forward, whose batch has one row."""
        by_token = states.transpose(1, 2)
        return by_token if self.plan.rows is None else by_token[0]

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots sources[b, i] to targets[b, i] in every row; all are read before any is written."""
        if self.is_initialized:
            sources, targets = sources.to(self.keys.device), targets.to(self.keys.device)
            rows = torch.arange(sources.shape[0], device=self.keys.device)[:, None]
            self.keys[rows, :, targets] = self.keys[rows, :, sources]
            self.values[rows, :, targets] = self.values[rows, :, sources]

    def get_seq_length(self) -> int:
        """Slots filled before the current forward; the host builds its own prefill masks from it."""
        return self.plan.past

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Slots that the host's prefill mask covers, and their offset."""
        return self.plan.past + query_length, 0

    def get_max_length(self) -> int:
        """No fixed limit."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Rows are rewound by writing over them; there is nothing to remove here."""

    def select(self, rows: Tensor) -> None:
        """Keep the given rows only."""
        if self.is_initialized:
            index = rows.to(self.keys.device)
            self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)


class RowCache(Cache):
    """Cache whose rows are written at slots of their own and rewound by a smaller length."""

    def __init__(self, capacity: int, batch: int) -> None:
        self.plan = WritePlan(capacity, batch)
        super().__init__(layer_class_to_replicate=lambda: RowLayer(self.plan))

    def select(self, rows: Tensor) -> None:
        """Keep the given rows only, in this order."""
        self.plan.batch = len(rows)
        for layer in self.layers:
            layer.select(rows)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots sources[b, i] to targets[b, i], both (B, n), in every layer."""
        for layer in self.layers:
            layer.move(sources, targets)
