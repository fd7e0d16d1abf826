"""A draft whose head scores a part of the vocabulary (frequency-ranked speculative sampling, 2502.14856).

With a vocabulary of 150 thousand tokens most of a small draft's time goes into its head. Tokens that the head does not
score have the draft's probability 0, which every verifier allows for: the target's law stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..decoding.traits import input_device
from ..packing import Packable, PackedLinear
from .kept_ids import Text, check_ids, choose_ids, special_ids
from .shared_copy import shared_copy

_PLAIN = (nn.Linear, PackedLinear)  # heads whose rows are their weight's
_BASIS = 64  # unit vectors sent through a quantised head together
# Probability 0 at any temperature, and still a number: where processors forbid all kept tokens, a law is left.
UNSCORED = -1e30


def trim_vocabulary(
    draft: Any,
    keep: int = 32768,
    *,
    counts: Tensor | Mapping[int, int] | None = None,
    text: Text | None = None,
    tokenizer: Any = None,
    ids: Tensor | None = None,
) -> Any:
    """A model over the draft's weights whose head scores the kept tokens only; all others get probability 0.

    It goes wherever a draft or companion goes. The draft is not changed, and nothing of it is copied but the kept rows
    of its head; see `shared_copy`. The draft runs here, to compare logits; so save a 4-bit bitsandbytes draft before.

    Args:
        draft: a Transformers causal language model, quantised or not.
        keep: number of tokens kept; begin, end and padding are among them in any case.
        counts: occurrences by id, (V,) or a mapping: the most frequent tokens are kept, the rest are the lowest ids.
        text: in place of counts, text to count in: a `Path` is a file, a string the text; several in a sequence.
        tokenizer: the draft's, for text; its special tokens are kept too.
        ids: (n,) in place of all these, the ids to keep, such as the `kept_ids` of another trimmed model.

    Returns:
        The model; its attribute `kept_ids` is (n,) long, ascending.

    Raises:
        ValueError: for values that are not allowed, or a draft whose logits don't come from the rows of a head.
    """
    head, name = _find_head(draft)
    size = int(head.out_features)
    special = special_ids(draft, tokenizer, size)
    if ids is not None:
        if counts is not None or text is not None:
            raise ValueError("ids and counts or text exclude each other: ids says what is kept")
        kept = check_ids(ids, size, special)
    else:
        kept = choose_ids(size, special, keep, counts, text, tokenizer)
    trimmed = shared_copy(draft)
    with torch.no_grad():
        trimmed.set_submodule(name, KeptHead.of(head, kept, draft.dtype))
    _mark(trimmed, kept, size)
    # Where the head was tied to the embeddings, its few rows are not.
    tied = getattr(draft, "all_tied_weights_keys", None) or {}
    own = f"{name}."
    trimmed.all_tied_weights_keys = {
        key: value for key, value in tied.items() if not key.startswith(own) and not value.startswith(own)
    }
    _compare(draft, trimmed, exact=type(head) in _PLAIN)
    object.__setattr__(trimmed, "trimmed_from", draft)  # no submodule of it
    return trimmed


def share_head(model: Any, trimmed: Any) -> Any:
    """Give a model the head of a trimmed one; for another `shared_copy` of what that was made from, which is changed.

    Raises:
        ValueError: if its logits don't come from the rows of a head.
    """
    head, name = _find_head(model)
    size = int(head.out_features)
    model.set_submodule(name, trimmed.get_output_embeddings())
    _mark(model, trimmed.kept_ids, size)
    return model


def _mark(model: Any, kept: Tensor, size: int) -> None:
    model.register_forward_hook(_Scatter(kept, size))
    model.kept_ids, model.save_pretrained = kept, _refuse_saving


class KeptHead(Packable):
    """Rows of a head, (n, H), and of its bias, if any."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    def of(cls, head: nn.Module, kept: Tensor, dtype: torch.dtype) -> KeptHead:
        """The kept rows of a linear layer, whatever form its weights have."""
        weight = getattr(head, "weight", None)
        if type(head) in _PLAIN and isinstance(weight, Tensor) and weight.device.type != "meta":
            rows = kept.to(weight.device)
            own: Tensor | None = getattr(head, "bias", None)
            return cls(weight[rows].clone(), None if own is None else own[rows].clone())
        # Quantised or offloaded weights: what the layer does to unit vectors says what its rows are.
        width = int(head.in_features)  # type: ignore[arg-type]
        device = weight.device if isinstance(weight, Tensor) and weight.device.type != "meta" else torch.device("cpu")
        basis = torch.eye(width, dtype=dtype, device=device)
        bias = head(torch.zeros(1, width, dtype=dtype, device=device))[0].to(dtype)
        rows = kept.to(bias.device)
        columns = [head(part)[:, rows].to(dtype) - bias[rows] for part in torch.split(basis, _BASIS)]
        return cls(torch.cat(columns).T.contiguous(), bias[rows].clone() if bool(bias.any()) else None)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, H) -> (…, n)."""
        # As one matrix: a CPU takes 100 times as long with frozen bf16 weights and the last positions' strided view.
        flat = hidden.to(self.weight.device).reshape(-1, hidden.shape[-1])
        return self.product(flat, self.weight, self.bias).view(*hidden.shape[:-1], -1)


class _Scatter:
    """A forward hook that puts the kept logits into their places among all V, once the model is done with them.

    What a model does to its logits, such as soft capping, happens before and to the kept ones alone.
    """

    def __init__(self, kept: Tensor, size: int) -> None:
        self.kept, self.size = kept, size

    def __call__(self, module: nn.Module, arguments: Any, output: Any) -> Any:
        logits: Tensor = output.logits
        if logits.shape[-1] != len(self.kept):
            raise ValueError(
                f"draft: the logits of {type(module).__name__} don't come from its output embeddings; allowed are "
                "models whose head is one linear layer"
            )
        if self.kept.device != logits.device:
            self.kept = self.kept.to(logits.device)
        lowest = max(UNSCORED, torch.finfo(logits.dtype).min)
        whole = logits.new_full((*logits.shape[:-1], self.size), lowest)
        output.logits = whole.index_copy_(-1, self.kept, logits)
        return output


def _find_head(draft: Any) -> tuple[Any, str]:
    """The module that gives the logits, and its name."""
    if hasattr(draft, "kept_ids"):
        raise ValueError("draft: it is trimmed already; allowed is the model that it was made from")
    find = getattr(draft, "get_output_embeddings", None)
    head = None if find is None else find()
    name = next((name for name, module in draft.named_modules() if module is head), None) if head is not None else None
    if head is None or not name or not hasattr(head, "out_features") or not hasattr(head, "in_features"):
        raise ValueError(
            f"draft: {type(draft).__name__} has the head {type(head).__name__}; allowed are models whose head is one "
            "linear layer"
        )
    return head, name


def _compare(draft: Any, trimmed: Any, exact: bool) -> None:
    """Refuse a draft whose logits the kept rows don't reproduce."""
    kept = trimmed.kept_ids.to(input_device(draft))
    sample = kept[torch.linspace(0, len(kept) - 1, 8, device=kept.device).long()][None]
    with torch.no_grad():
        outputs = [model(input_ids=sample, use_cache=False, return_dict=True).logits for model in (draft, trimmed)]
    right, ours = (logits[..., kept.to(logits.device)].float() for logits in outputs)
    distance = float((right - ours).abs().max() / right.abs().max().clamp_min(1e-12))
    limit = 1e-4 if exact and draft.dtype in (torch.float32, torch.float64) else 5e-2
    if not distance <= limit:
        head = type(draft.get_output_embeddings()).__name__
        raise ValueError(
            f"draft: the kept rows of the head {head} of {type(draft).__name__} give other logits than the model "
            f"(relative error {distance:.1e}); allowed are models in eval mode whose logits come from a linear head, "
            "each from its own row"
        )


def _refuse_saving(*_: Any, **__: Any) -> None:
    raise ValueError("a trimmed draft can't be saved as a model: keep its kept_ids, and trim the draft again with ids=")
