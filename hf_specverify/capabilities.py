"""What of `generate` works with speculative decoding, and what is refused: the one place that says so.

`docs/capabilities.md` is written from here (`make docs`); every refusal in it is the check that calls run through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True)
class Request:
    """One call of `generate`, as the strategy gets it from the host."""

    model: Any
    batch_size: int
    generation_config: Any
    model_kwargs: Mapping[str, Any]
    streamer: Any


@dataclass(frozen=True)
class Refusal:
    """A use of `generate` that is refused up front.

    feature: what the user asked for. reason: why not, and what to do instead. applies: whether a request asks for it.
    """

    feature: str
    reason: str
    applies: Callable[[Request], bool]


@dataclass(frozen=True)
class Support:
    """A use of `generate` that works, and how."""

    feature: str
    how: str


SUPPORTED = (
    Support("batches", "left-padded; rows accept tokens independently, finished rows leave the work"),
    Support("`num_return_sequences`", "rows are expanded by the host before speculation"),
    Support("greedy decoding", "token-identical to plain generation in float32; in 16 bit near-ties can differ"),
    Support("sampling", "temperature, top-k, top-p, min-p, typical, epsilon, eta, …: one call for all positions"),
    Support(
        "logits processors that read tokens", "the host's: called once per absolute position, with plain's own ids"
    ),
    Support(
        "any other logits processor",
        "`prefix_allowed_tokens_fn`, guidance, watermarks, your own: called in order on a copy per row, so a state is "
        "right after rejections; your object itself is not called. One call per row and position: costly in batches, "
        "above all guidance, which runs the model; other rows hold filler where they are shorter",
    ),
    Support("stopping criteria", "checked at every committed token; your own: once per row and token"),
    Support("`eos_token_id` (one or several)", "a row ends inside a block; what follows is padding"),
    Support("`max_new_tokens`, `max_length`, `min_new_tokens`, `min_length`", "as in plain generation"),
    Support("`max_time`", "checked after every step"),
    Support("`stop_strings` with `tokenizer`", "after `enable`"),
    Support("`streamer`", "batch of one; after `enable`, or as `SpeculativeDecoding(streamer=…)`"),
    Support("`return_dict_in_generate`", "the host's output type with a `speculation` field; no `cache`"),
    Support(
        "`output_scores`, `output_logits`", "equal to plain generation's for committed tokens; zeros behind a row's end"
    ),
    Support(
        "`output_hidden_states`, `output_attentions`",
        "as above; layers with a window have all columns, with zeros outside it",
    ),
    Support("`generator`, `torch.manual_seed`", "same seed, same output (not the same draws as plain generation)"),
    Support("`prefill_chunk_size`", "for target and draft"),
    Support("quantised models, `device_map`", "target and draft may be on different devices"),
    Support(
        '`pipeline("text-generation", …)`',
        "after `enable`: models, names and drafters, batches, chats, a streamer; see pipelines.md",
    ),
    Support(
        "names in place of models", "after `enable`: `assistant_model`, `companion_model`; loaded once for the target"
    ),
    Support("draft and target with padded heads", "common vocabulary, same tokenizer"),
    Support("attention `sdpa`, `eager`, `flex_attention`", "row cache, where a probe finds it exact"),
    Support(
        "`num_draft_paths`, draft trees",
        "in the row cache, with draft models and feature heads; refused for the layouts below, prompt lookup, "
        "candidate generators",
    ),
    Support(
        "`verify_length`, `draft_length`",
        "schedules of single chains; signals come from draft models, feature heads and prompt lookup; "
        "`verify_length='goodput'` of dynamic trees too",
    ),
    Support("FlashAttention, alibi (bloom)", "masked holes in the host's cache, where no layer has a window"),
    Support("gpt_neo and other families without custom masks", "row by row, with a warning"),
    Support("recurrent and hybrid models", "row by row, by snapshot and replay, with a warning"),
)


class _Field(NamedTuple):
    """A field of the generation configuration: the feature it asks for, when, and why that is refused."""

    feature: str
    is_set: Callable[[Any], bool]
    reason: str


_CONFIG_FIELDS = {
    "num_beams": _Field(
        "beam search", lambda value: (value or 1) > 1, "beams share tokens that a rejection would take back"
    ),
    "penalty_alpha": _Field("contrastive search", bool, "it re-ranks with hidden states of candidates"),
    "dola_layers": _Field("DoLa", bool, "its scores come from several layers"),
    "prompt_lookup_num_tokens": _Field(
        "`prompt_lookup_num_tokens`", bool, "give `assistant_model=PromptLookup()` instead"
    ),
    "assistant_early_exit": _Field(
        "`assistant_early_exit`",
        bool,
        "it changes the target's configuration while it runs; give `assistant_model=EarlyExit(n)` instead",
    ),
    "cache_implementation": _Field(
        "`cache_implementation` other than `dynamic`",
        lambda value: value not in (None, "dynamic"),
        "rejected tokens are taken back in a cache of our own",
    ),
    "compile_config": _Field("`compile_config`", bool, "blocks of changing length are not compiled"),
    "constraints": _Field("`constraints`", bool, "the host hands them to its beam search only"),
    "force_words_ids": _Field("`force_words_ids`", bool, "the host hands them to its beam search only"),
    "use_mtp": _Field("`use_mtp`", bool, "the target's own prediction heads are a drafter of the host's, not ours"),
    "token_healing": _Field(
        "`token_healing`", bool, "the host needs the tokenizer at a place where it does not pass it on"
    ),
}


# What the host puts among the model inputs of a text model, with those that have a refusal of their own.
_KNOWN_INPUTS = {
    "attention_mask",
    "cache",
    "past_key_values",
    "position_ids",
    "logits_to_keep",
    "use_cache",
    "inputs_embeds",
    "output_attentions",
    "output_hidden_states",
}


def _config_refusal(name: str) -> Refusal:
    field = _CONFIG_FIELDS[name]
    return Refusal(
        field.feature, field.reason, lambda request: field.is_set(getattr(request.generation_config, name, None))
    )


def _has_unknown_inputs(request: Request) -> bool:
    return bool(unknown_inputs(request.model_kwargs))


def unknown_inputs(model_kwargs: Mapping[str, Any]) -> list[str]:
    """Model inputs that speculative decoding does not know how to pass on, such as images."""
    return sorted(name for name, value in model_kwargs.items() if name not in _KNOWN_INPUTS and value is not None)


def _is_padded_otherwise(request: Request) -> bool:
    """Whether a mask is anything but zeros followed by ones."""
    mask = request.model_kwargs.get("attention_mask")
    if mask is None:
        return False
    return bool((mask[:, 1:] < mask[:, :-1]).any() or (mask[:, -1] == 0).any())


def _has_own_positions(request: Request) -> bool:
    """Whether position ids are others than those that follow from the mask."""
    positions, mask = (request.model_kwargs.get(name) for name in ("position_ids", "attention_mask"))
    if positions is None:
        return False
    valid = torch.ones_like(positions, dtype=torch.bool) if mask is None else mask.bool()
    return not torch.equal(positions[valid], (valid.long().cumsum(-1) - 1)[valid])


def _grows_rope(request: Request) -> bool:
    """Whether the rotary frequencies change at a length that this call can reach."""
    limit = rope_limit(request.model.config)
    return limit is not None and request.generation_config.max_length > limit


def rope_limit(config: Any) -> int | None:
    """Length up to which rotary frequencies don't depend on the length of the text; None where they never do."""
    config = config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if parameters.get("rope_type", parameters.get("type")) not in ("dynamic", "longrope"):
        return None
    original = parameters.get("original_max_position_embeddings")
    original = original or getattr(config, "original_max_position_embeddings", None)
    return int(original or config.max_position_embeddings)


def _tunes_attention(request: Request) -> bool:
    """Whether attention is scaled by cache slots that this call can reach (Llama 4)."""
    config = request.model.config.get_text_config(decoder=True)
    tuned = bool(getattr(config, "attn_temperature_tuning", False))
    return tuned and request.generation_config.max_length > (getattr(config, "floor_scale", None) or 0)


def _is_used(cache: Any) -> bool:
    return cache is not None and bool(getattr(cache, "_is_user_defined", False))


REFUSED = (
    Refusal(
        "encoder-decoder models",
        "the decoder's cross-attention cache can't be rolled back by row yet",
        lambda request: bool(request.model.config.is_encoder_decoder),
    ),
    *(_config_refusal(name) for name in _CONFIG_FIELDS),
    Refusal(
        "`inputs_embeds`",
        "drafts and verification need token ids; pass `input_ids`",
        lambda request: request.model_kwargs.get("inputs_embeds") is not None,
    ),
    Refusal(
        "`use_cache=False`",
        "without a cache a target pass costs as much as the whole text",
        lambda request: request.generation_config.use_cache is False,
    ),
    Refusal(
        "a `cache` (`past_key_values`) passed in",
        "its rows can't be written at slots of their own; pass the whole prompt as `input_ids`",
        lambda request: any(_is_used(request.model_kwargs.get(name)) for name in ("cache", "past_key_values")),
    ),
    Refusal(
        "an `attention_mask` that is not left padding",
        "rows end where the answer begins; pad on the left (`padding_side='left'`)",
        _is_padded_otherwise,
    ),
    Refusal(
        "`position_ids` of your own",
        "positions in a block follow from the mask; leave them out",
        _has_own_positions,
    ),
    Refusal(
        "rotary scaling `dynamic` or `longrope` beyond the original length",
        "frequencies then depend on the longest text in the batch, drafts included; keep `max_length` within "
        "`original_max_position_embeddings`",
        _grows_rope,
    ),
    Refusal(
        "attention temperature tuning (Llama 4) beyond `floor_scale`",
        "the model takes positions from its cache and not from the call; keep `max_length` within `floor_scale`",
        _tunes_attention,
    ),
    Refusal(
        "images, audio and other model inputs",
        "only `input_ids` and `attention_mask` are passed on in blocks",
        _has_unknown_inputs,
    ),
    Refusal(
        "`streamer` with several rows",
        "rows advance at different speed; stream rows one by one",
        lambda request: request.streamer is not None and request.batch_size > 1,
    ),
)


def refuse(request: Request) -> None:
    """Raise for what does not work.

    Raises:
        ValueError: naming the feature and the reason.
    """
    for refusal in REFUSED:
        if refusal.applies(request):
            names = f" {unknown_inputs(request.model_kwargs)}" if refusal.applies is _has_unknown_inputs else ""
            raise ValueError(f"speculative decoding does not support {refusal.feature}{names}: {refusal.reason}")


def markdown() -> str:
    """The table of `docs/capabilities.md`."""
    lines = [
        "# What works and what is refused",
        "",
        "Written by `make docs` from `hf_specverify/capabilities.py`; a test compares them.",
        "Nothing is silently ignored: what is not in the first table is refused before a token is generated.",
        "",
        "| works | how |",
        "| --- | --- |",
        *(f"| {item.feature} | {item.how} |" for item in SUPPORTED),
        "",
        "| refused with a `ValueError` | why, and what to do |",
        "| --- | --- |",
        *(f"| {item.feature} | {item.reason} |" for item in REFUSED),
    ]
    return "\n".join(lines) + "\n"
