"""The network of a feature head (EAGLE-3, 2503.01840, section 3.1)."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from ...packing import Packable
from .config import HeadConfig


class Keys(Protocol):
    """Where keys and values of earlier places are kept: a `RowCache`, or what training has in its place."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Take in those of new places, (B, heads, n, head size); return those that attention reads."""


class HeadModel(Packable):
    """One decoder layer that reads the target's features and its own last hidden state in turn.

    At place t it reads token t + 1 together with the fused hidden states of the target at token t, and scores token
    t + 2. Where the target has not been yet, its own output at t - 1 stands for the features at t. Names of parameters
    are those of the `speculators` format.

    Args:
        config: its shape.

    Attributes:
        embed_tokens: (V, H), the target's unless the head has its own; not trained.
        lm_head: (D, H), as well.
        own: which of the two are the head's own.
        draft_ids: (D,) long, which token of the target each token of the draft vocabulary is.
    """

    embed_tokens: Tensor
    lm_head: Tensor
    draft_ids: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.layer.rms_norm_eps
        self.fc = nn.Linear(config.feature_size, hidden, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config)])
        self.norm = Norm(hidden, eps)
        self.input_norm = Norm(config.feature_size, eps) if config.norm_before_fc else None
        part = config.feature_size // config.num_features
        self.fc_norm = nn.ModuleList([Norm(part, eps) for _ in range(config.num_features)]) if config.fc_norm else None
        self.rotary = LlamaRotaryEmbedding(config.layer)
        self.register_buffer("draft_ids", torch.arange(config.draft_vocab_size), persistent=False)
        self.own: frozenset[str] = frozenset()
        # Buffers, so that they move along; mostly they are the target's, and not written with the head.
        for name, rows in (("embed_tokens", config.vocabulary), ("lm_head", config.draft_vocab_size)):
            self.register_buffer(name, torch.zeros(rows, 0), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> HeadModel:
        """Move or retype all but the rotary frequencies, which in 16 bit would turn far places by wrong angles."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.rotary = LlamaRotaryEmbedding(self.config.layer).to(self.device)
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.fc.weight.device

    def num_parameters(self) -> int:
        """Numbers that are the head's own, embeddings and scoring rows left out."""
        return sum(part.numel() for part in self.parameters())

    def fuse(self, features: Tensor) -> Tensor:
        """(…, features of all layers side by side) to (…, H)."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, keys: Keys
    ) -> tuple[Tensor, Tensor]:
        """Read n places.

        Args:
            tokens: (B, n) long, token t + 1 at place t.
            hidden: (B, n, H), the fused features of token t, or what the head gave back at place t - 1.
            positions: (B, n) long.
            mask: bool, broadcast to (B, heads, n, places read); None: everything is seen.
            keys: takes keys and values of the n places in, and gives those of all places.

        Returns:
            (B, n, H) what stands for the features at place t + 1; (B, n, H) what `logits` scores token t + 2 with.
        """
        rotation = self.rotary(hidden, positions)
        hidden = self.layers[0](F.embedding(tokens, self.embed_tokens), hidden, rotation, mask, keys)
        normed = self.norm(hidden)
        return (normed if self.config.norm_output else hidden), normed

    def logits(self, normed: Tensor) -> Tensor:
        """(…, D) scores of the draft vocabulary."""
        return self.product(normed, self.lm_head)


class Norm(nn.RMSNorm):
    """Works in the dtype of its weight, also where autocast hands it 16 bit."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, H) of any dtype to (…, H) in that of the weight."""
        return F.rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)


class HeadLayer(nn.Module):
    """The decoder layer: embedding and hidden state, each normed, go into attention side by side."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm, self.hidden_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.self_attn = HeadAttention(config.layer)
        self.mlp: Any = (Qwen3MLP if config.layer.model_type == "qwen3" else LlamaMLP)(config.layer)

    def forward(
        self, embedded: Tensor, hidden: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, keys: Keys
    ) -> Tensor:
        """(B, n, H) from embeddings and hidden states of the same shape."""
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        hidden = residual + self.self_attn(both, rotation, mask, keys)
        result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result


class HeadAttention(nn.Module):
    """Attention whose queries, keys and values come from two hidden states at once; the rest is the host's."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        hidden, self.head_dim = layer.hidden_size, layer.head_dim or layer.hidden_size // layer.num_attention_heads
        queries, shared = layer.num_attention_heads * self.head_dim, layer.num_key_value_heads * self.head_dim
        self.grouped = queries != shared
        self.q_proj = nn.Linear(2 * hidden, queries, bias=layer.attention_bias)
        self.k_proj = nn.Linear(2 * hidden, shared, bias=layer.attention_bias)
        self.v_proj = nn.Linear(2 * hidden, shared, bias=layer.attention_bias)
        self.o_proj = nn.Linear(queries, hidden, bias=layer.attention_bias)
        normed = layer.model_type == "qwen3"
        self.q_norm = Norm(self.head_dim, layer.rms_norm_eps) if normed else None
        self.k_norm = Norm(self.head_dim, layer.rms_norm_eps) if normed else None

    def forward(self, both: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, keys: Keys) -> Tensor:
        """(B, n, H) from (B, n, 2 H)."""
        queries, new = self._heads(self.q_proj(both)), self._heads(self.k_proj(both))
        if self.q_norm is not None and self.k_norm is not None:
            queries, new = self.q_norm(queries), self.k_norm(new)
        queries, new = apply_rotary_pos_emb(queries, new, *rotation)
        every, values = keys.update(new, self._heads(self.v_proj(both)), 0)
        seen = F.scaled_dot_product_attention(queries, every, values, attn_mask=mask, enable_gqa=self.grouped)
        result: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return result

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2)
