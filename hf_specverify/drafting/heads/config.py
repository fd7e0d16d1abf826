"""What a feature head is made of, and how the two file formats write that down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import LlamaConfig, Qwen3Config

LAYER_CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
FORMAT_VERSION = "0.9.0"  # of the speculators format that is written
SPECULATORS, EAGLE3 = "speculators", "eagle3"
LAYOUTS = (SPECULATORS, EAGLE3)

_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Of a layer's configuration, what says nothing about the layer.
_NOT_OF_THE_LAYER = {"architectures", "dtype", "_name_or_path", "use_cache", "output_hidden_states", "return_dict"}


@dataclass(frozen=True)
class HeadConfig:
    """The shape of a feature head.

    Attributes:
        layer: configuration of its one decoder layer, of Llama's or Qwen3's kind; `vocab_size` is the target's.
        draft_vocab_size: tokens that its head scores.
        target_layers: the hidden states of the target that it reads, as indices into what `output_hidden_states`
            gives: 0 is the embeddings, i the output of the i-th layer. None: `default_layers` of the target.
        target_hidden_size: the target's hidden size, where it is not the head's; None: it is.
        norm_before_residual: whether the layer's residual is the normed hidden state.
        norm_before_fc: whether the features are normed together before they are fused.
        fc_norm: whether each of them is normed by itself before.
        norm_output: whether the normed hidden state is fed back, in place of the layer's own output.
        target: the target's name, or None. target_architectures: its classes.
        num_draft_tokens: tokens to draft per step, as its maker suggests.

    Raises:
        ValueError: naming a field whose value is not allowed.
    """

    layer: Any
    draft_vocab_size: int
    target_layers: tuple[int, ...] | None = None
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    target: str | None = None
    target_architectures: tuple[str, ...] = ()
    num_draft_tokens: int = 3
    _name_or_path: str = field(default="", compare=False)  # where it was read from, as the host's have it

    def __post_init__(self) -> None:
        if getattr(self.layer, "model_type", None) not in LAYER_CONFIGS:
            raise ValueError(
                f"model_type={getattr(self.layer, 'model_type', None)!r}: allowed are {sorted(LAYER_CONFIGS)}"
            )
        if self.layer.num_hidden_layers != 1:
            raise ValueError(f"num_hidden_layers={self.layer.num_hidden_layers!r}: a head has 1 decoder layer")
        for name in _SIZES:
            _check_size(name, getattr(self.layer, name))
        if self.layer.num_attention_heads % self.layer.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.layer.num_key_value_heads}: allowed are divisors of num_attention_heads, "
                f"{self.layer.num_attention_heads}"
            )
        for name in ("draft_vocab_size", "num_draft_tokens"):
            _check_size(name, getattr(self, name))
        if self.draft_vocab_size > self.vocabulary:
            raise ValueError(
                f"draft_vocab_size={self.draft_vocab_size}: allowed is vocab_size={self.vocabulary} at most"
            )
        if self.target_hidden_size is not None:
            _check_size("target_hidden_size", self.target_hidden_size)
        self._check_layers()
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed are true and false")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other; allowed is one of them")

    def _check_layers(self) -> None:
        layers = self.target_layers
        if layers is None:
            return
        fine = bool(layers) and all(type(layer) is int and layer >= 0 for layer in layers)
        if not fine or len(set(layers)) < len(layers):
            raise ValueError(
                f"eagle_aux_hidden_state_layer_ids={list(layers)}: allowed are different integers from 0, at least one"
            )

    @property
    def vocabulary(self) -> int:
        """V, the target's vocabulary."""
        return int(self.layer.vocab_size)

    @property
    def hidden_size(self) -> int:
        """H, of the head."""
        return int(self.layer.hidden_size)

    @property
    def num_features(self) -> int:
        """How many of the target's hidden states it reads; EAGLE-3 has three."""
        return 3 if self.target_layers is None else len(self.target_layers)

    @property
    def feature_size(self) -> int:
        """Numbers that it reads of each token of the target."""
        return self.num_features * (self.target_hidden_size or self.hidden_size)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HeadConfig:
        """Read a config.json, in the `speculators` format or as EAGLE-3 repositories have it.

        Raises:
            ValueError: naming the field that is missing or has a value that is not allowed.
        """
        if "speculators_model_type" in values:
            return cls._from_speculators(values)
        layers = (values.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        return cls(
            layer=_layer({"model_type": "llama", "num_hidden_layers": 1, **values}, ""),
            draft_vocab_size=values.get("draft_vocab_size", values["vocab_size"]),
            target_layers=_tuple(values.get("eagle_aux_hidden_state_layer_ids", layers)),
            target_hidden_size=values.get("target_hidden_size"),
            **{name: values[name] for name in _FLAGS if name in values},
        )

    @classmethod
    def _from_speculators(cls, values: Mapping[str, Any]) -> HeadConfig:
        if values["speculators_model_type"] != "eagle3":
            raise ValueError(f"speculators_model_type={values['speculators_model_type']!r}: allowed is 'eagle3'")
        for name in ("transformer_layer_config", "draft_vocab_size"):
            if values.get(name) is None:
                raise ValueError(f"{name} is missing; the speculators format has it in config.json")
        origin = values.get("speculators_config") or {}
        verifier = origin.get("verifier") or {}
        methods = origin.get("proposal_methods") or [{}]
        return cls(
            layer=_layer(values["transformer_layer_config"], "transformer_layer_config: "),
            draft_vocab_size=values["draft_vocab_size"],
            target_layers=_tuple(values.get("eagle_aux_hidden_state_layer_ids")),
            target_hidden_size=values.get("target_hidden_size"),
            target=verifier.get("name_or_path"),
            target_architectures=tuple(verifier.get("architectures") or ()),
            num_draft_tokens=methods[0].get("speculative_tokens", 3),
            **{name: values[name] for name in _FLAGS if name in values},
        )

    def get_text_config(self, decoder: bool = True) -> Any:
        """The layer's configuration: what the host's models call the one of their text decoder."""
        return self.layer

    def to_dict(self, layout: str = SPECULATORS, dtype: str | None = None) -> dict[str, Any]:
        """What config.json holds.

        Args:
            layout: one of `LAYOUTS`.
            dtype: of the weights, as the host writes it; None leaves it open.
        """
        layer = {name: value for name, value in self.layer.to_dict().items() if name not in _NOT_OF_THE_LAYER}
        layers = None if self.target_layers is None else list(self.target_layers)
        own = {
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_hidden_size,
            "eagle_aux_hidden_state_layer_ids": layers,
            "dtype": dtype,
            "tie_word_embeddings": False,
            **{name: getattr(self, name) for name in _FLAGS},
        }
        if layout == EAGLE3:
            return {**layer, **own, "architectures": ["LlamaForCausalLMEagle3"]}
        proposal = {"proposal_type": "greedy", "speculative_tokens": self.num_draft_tokens}
        return {
            **own,
            "architectures": ["Eagle3Speculator"],
            "embed_requires_grad": False,
            "speculators_model_type": "eagle3",
            "speculators_version": FORMAT_VERSION,
            "transformer_layer_config": layer,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.target, "architectures": list(self.target_architectures)},
            },
        }


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high of a target with so many layers, as EAGLE-3 takes them; evenly spaced where it is small."""
    if num_layers >= 7:
        return 2, num_layers // 2, num_layers - 3
    return tuple(sorted({0, num_layers // 2, num_layers}))


def _layer(values: Any, prefix: str) -> Any:
    """The configuration of the decoder layer."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{prefix}must be an object, got {values!r}")
    kind = values.get("model_type", "qwen3")  # the format's own default
    if kind not in LAYER_CONFIGS:
        raise ValueError(f"{prefix}model_type={kind!r}: allowed are {sorted(LAYER_CONFIGS)}")
    for name in _SIZES:
        if values.get(name) is None:
            raise ValueError(f"{prefix}{name} is missing")
        _check_size(prefix + name, values[name])
    known = {name: value for name, value in values.items() if name not in _NOT_OF_THE_LAYER}
    try:
        return LAYER_CONFIGS[kind](**known)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{prefix}not the configuration of a {kind} layer: {error}") from error


def _check_size(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r}: allowed are integers from 1")


def _tuple(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise ValueError(f"eagle_aux_hidden_state_layer_ids={value!r}: allowed is a list of integers from 0")
    return tuple(value)
