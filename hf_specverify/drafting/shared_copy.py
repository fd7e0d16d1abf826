"""A second model object over the same weights, which can be given other parts without changing the first."""

from __future__ import annotations

import copy
from functools import partial
from types import MethodType
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

# Set on one object by its owner: compiled calls and generation of its own run that object, not a copy; and what an int8
# copy was made from says nothing of what is made from it.
_OF_THE_ORIGINAL = ("generate", "_compiled_call_impl", "source_sha256")


def shared_copy(model: Any) -> Any:
    """A copy of a model that owns no weights: what has children is copied, what has none is the same object.

    So the two differ in their structure only, at will: a part replaced in the copy leaves the original as it was.
    Configuration and generation_config are the copy's own. Moving or retyping one of the two (`.to`) does it to both,
    for they have the same tensors. Works for quantised models, whose layers hold more than their tensors.

    Args:
        model: a Transformers model.

    Raises:
        ValueError: if a module's forward was replaced by one that can't be copied, such as a compiled one.
    """
    configs: dict[int, Any] = {}
    config = copy.deepcopy(model.config, configs)
    duplicate = _copy_module(model, configs, {})
    duplicate.config = config
    if getattr(model, "generation_config", None) is not None:
        # Assisted decoding of the host writes into the draft's.
        duplicate.generation_config = copy.deepcopy(model.generation_config)
    return duplicate


def _copy_module(module: nn.Module, configs: dict[int, Any], done: dict[int, nn.Module]) -> nn.Module:
    if id(module) in done:
        return done[id(module)]
    if not module._modules:
        return module
    duplicate = type(module).__new__(type(module))
    done[id(module)] = duplicate
    for name, value in vars(module).items():
        if name not in _OF_THE_ORIGINAL:
            # nn.Module's own __setattr__ needs what is being set here: its dicts of modules, parameters and hooks.
            duplicate.__dict__[name] = _own(value, module, duplicate, configs)
    if "forward" in vars(module) and vars(duplicate)["forward"] is vars(module)["forward"]:
        raise ValueError(
            f"the forward of {type(module).__name__} was replaced by {module.forward!r}, which runs the original "
            "model; allowed are models that are not compiled"
        )
    for name, child in module._modules.items():
        duplicate._modules[name] = None if child is None else _copy_module(child, configs, done)
    return duplicate


def _own(value: Any, module: nn.Module, duplicate: nn.Module, configs: dict[int, Any]) -> Any:
    """An attribute's value for the copy: containers and configurations of its own, methods bound to it."""
    if isinstance(value, PreTrainedConfig):
        return configs.get(id(value), value)
    if isinstance(value, dict | set):
        return value.copy()
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, duplicate)
    if isinstance(value, partial) and value.args[:1] == (module,):
        # How accelerate hooks a forward; its signature is looked up behind __wrapped__.
        bound = partial(value.func, duplicate, *value.args[1:], **value.keywords)
        vars(bound).update(vars(value))
        return bound
    return value
