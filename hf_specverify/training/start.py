"""A new head for a target."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..decoding.traits import input_device
from ..drafting.heads import HeadConfig, HeadModel, default_layers
from ..drafting.heads.config import LAYER_CONFIGS
from ..drafting.heads.weights import check_target, take_from_target
from .settings import HeadTraining

_OF_THE_TARGET = (
    "max_position_embeddings",
    "rope_parameters",
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
)


def new_head(target: Any, draft_ids: Tensor, settings: HeadTraining, name: str | None = None) -> HeadModel:
    """An untrained head in float32, with the target's embeddings and scoring rows.

    Its layer has the target's sizes and rotary positions. With `start="last_layer"` it begins with the weights of the
    target's last layer, as far as that has parts of the same name and shape.

    Args:
        target: a Transformers causal language model.
        draft_ids: (D,) long, the draft vocabulary, ascending.
        settings: layers, start and seed.
        name: the target's; None: what its configuration says.

    Raises:
        ValueError: if the target has no such layers.
    """
    config = _config(target, len(draft_ids), settings, name)
    check_target(config, target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = HeadModel(config)
        _draw(head)
    head.draft_ids = draft_ids.clone()
    head.to(input_device(target))
    if settings.start == "last_layer":
        _copy_last_layer(head, target)
    take_from_target(head, target)
    return head


def _config(target: Any, draft_vocabulary: int, settings: HeadTraining, name: str | None) -> HeadConfig:
    text = target.config.get_text_config(decoder=True)
    heads = int(text.num_attention_heads)
    sizes = {
        "vocab_size": int(text.vocab_size),
        "hidden_size": int(text.hidden_size),
        # Models with experts, and some others, have none: three times is what dense ones have.
        "intermediate_size": int(getattr(text, "intermediate_size", None) or 3 * text.hidden_size),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "head_dim": int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        "tie_word_embeddings": False,
    }
    kind = "qwen3" if text.model_type == "qwen3" else "llama"
    known = vars(LAYER_CONFIGS[kind]())
    taken = {name: getattr(text, name) for name in _OF_THE_TARGET if name in known and hasattr(text, name)}
    rotary = taken.get("rope_parameters")
    if not isinstance(rotary, dict) or "rope_type" not in rotary:  # none, or one for each kind of layer
        taken.pop("rope_parameters", None)
    layers = settings.target_layers or default_layers(int(text.num_hidden_layers))
    return HeadConfig(
        layer=LAYER_CONFIGS[kind](**sizes, **taken),
        draft_vocab_size=draft_vocabulary,
        target_layers=tuple(layers),
        target=name or getattr(target.config, "_name_or_path", "") or None,
        target_architectures=(type(target).__name__,),
        num_draft_tokens=min(settings.unroll, 4),
    )


def _draw(head: HeadModel) -> None:
    """Random weights of a small spread, which is how decoder layers begin."""
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _copy_last_layer(head: HeadModel, target: Any) -> None:
    """Put in what the target's last layer and its final norm have; the hidden state then comes from the last feature.

    Projections that read the embedding beside the hidden state keep their random half for it.
    """
    decoder = target.get_decoder()
    stacks = [part for part in decoder.modules() if isinstance(part, nn.ModuleList)]
    layers = int(target.config.get_text_config(decoder=True).num_hidden_layers)
    stack = next((part for part in stacks if len(part) == layers), None)
    if stack is None:
        return
    found: dict[str, Tensor] = {
        name: tensor for name, tensor in stack[-1].named_parameters() if tensor.is_floating_point()
    }
    with torch.no_grad():
        for name in ("input_layernorm", "post_attention_layernorm"):
            if f"{name}.weight" in found:
                found[f"{name}.weight"] = _gain(stack[-1].get_submodule(name), found[f"{name}.weight"])
        if "input_layernorm.weight" in found:
            found["hidden_norm.weight"] = found["input_layernorm.weight"]
        final = getattr(decoder, "norm", None)
        gain = _gain(final, final.weight) if final is not None and hasattr(final, "weight") else None
        for name, own in head.layers[0].named_parameters():
            _copy(own, found.get(name))
        _copy(head.norm.weight, gain)
        # The last of the features stands for the hidden state as it is.
        hidden = head.config.hidden_size
        if head.config.feature_size // head.config.num_features == hidden:
            head.fc.weight[:, -hidden:] += torch.eye(hidden, device=head.device)


def _gain(norm: nn.Module, weight: Tensor) -> Tensor:
    """What a norm multiplies with; some families store it as the distance to 1."""
    gain: Tensor = norm(torch.ones_like(weight)[None])[0]
    return gain


def _copy(own: Tensor, theirs: Tensor | None) -> None:
    """Copy a tensor of the same shape, or into the second half of a matrix that reads twice as much."""
    if theirs is None or theirs.ndim != own.ndim or theirs.shape[0] != own.shape[0]:
        return
    if theirs.shape == own.shape:
        own.copy_(theirs)
    elif own.ndim == 2 and own.shape[1] == 2 * theirs.shape[1]:
        own[:, theirs.shape[1] :].copy_(theirs)
