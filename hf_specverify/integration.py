"""The front door: `enable` for `model.generate`, and the strategy object for `custom_generate=`."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .capabilities import Request, refuse
from .config import SpeculationConfig
from .decoding.loop import SpeculativeLoop
from .decoding.probe import make_runner
from .decoding.processors import ProcessorPlan
from .decoding.recorder import Recorder
from .decoding.runner import OutputFlags
from .decoding.state import BatchState
from .decoding.stopping import Stopping
from .decoding.timing import Stopwatch
from .drafting import DraftingCall, FeatureHead, as_drafter
from .drafting.heads.weights import check_target
from .drafting.vocabulary import check_partner
from .named_models import named_model
from .report import SpeculationReport
from .scheduling.build import make_schedule
from .scheduling.head_companion import layers_to_see
from .scheduling.schedule import Schedule
from .verification import GeneratorDraws, Verifier

_OPTIONS = ("companion_model", "generator", *SpeculationConfig.option_names())


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """The host's output of decoder-only generation, and the report of how it came about."""

    speculation: SpeculationReport | None = None


class SpeculativeDecoding:
    """A decoding strategy for `model.generate(custom_generate=…)`, the host's own hook.

    Args:
        assistant_model: the draft: a model, a `Drafter`, or a `CandidateGenerator`.
        companion_model: a second small model, or a `FeatureHead`, for speculative verification, run where the
            calibration of `verify_length="goodput"` has one of its signals.
        generator: a `torch.Generator` for all random draws; None means the global one.
        streamer: gets committed tokens (one row). Give it here, not to `generate`, which would not pass it on.
        tokenizer, assistant_tokenizer: to compare the vocabularies of target and draft.
        options: those of `SpeculationConfig`.

    Raises:
        ValueError, TypeError: for options that are not allowed.
    """

    def __init__(
        self,
        assistant_model: Any,
        companion_model: Any = None,
        *,
        generator: torch.Generator | None = None,
        streamer: Any = None,
        tokenizer: Any = None,
        assistant_tokenizer: Any = None,
        **options: Any,
    ) -> None:
        self.drafter = as_drafter(assistant_model)
        self.companion_model = companion_model
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator={generator!r}: allowed are a torch.Generator and None")
        self.generator, self.streamer = generator, streamer
        self.tokenizers = (tokenizer, assistant_tokenizer)
        self.config = SpeculationConfig.from_options(options)

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> SpeculativeOutput | Tensor:
        """Generate; called by the host with everything prepared.

        Returns:
            What plain generation returns: (B, T) ids, or an output object with `return_dict_in_generate`.
        """
        refuse(Request(model, len(input_ids), generation_config, model_kwargs, self.streamer))
        self._check_companion(model)
        stopwatch = Stopwatch()
        loop = self._loop(
            model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs, stopwatch
        )
        if self.streamer is not None:
            self.streamer.put(input_ids.cpu())
        # The host swaps the kernels of mixture-of-experts layers while it decodes, and back.
        with getattr(model, "_optimize_model_for_decode", nullcontext)():
            steps = loop.run(generation_config.prefill_chunk_size)
        sequences = loop.state.sequences().to(input_ids.device)
        if not generation_config.return_dict_in_generate:
            return sequences
        report = SpeculationReport.from_steps(
            steps,
            seconds=stopwatch.seconds(),
            verification=loop.verifier.description,
            lossless=loop.verifier.info.lossless,
            drafter=self.drafter.name,
            layout=loop.target.layout,
            schedule=loop.schedule.name,
            drift=loop.schedule.drift,
        )
        return SpeculativeOutput(
            sequences=sequences, speculation=report, **loop.recorder.result(loop.target.prompt_outputs)
        )

    def _loop(
        self,
        model: Any,
        input_ids: Tensor,
        processors: Any,
        criteria: Any,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        stopwatch: Stopwatch,
    ) -> SpeculativeLoop:
        wanted = _wanted_outputs(generation_config)
        flags = OutputFlags(wanted["hidden_states"], wanted["attentions"], self._layers(model))
        target = self.drafter.target_runner(make_runner(model, stopwatch, "target", flags))
        ids = input_ids.to(target.device)
        stopping = Stopping(criteria)
        valid = _prompt_mask(ids, model_kwargs)
        state = BatchState(ids, valid, stopping.max_length, _pad_token(generation_config, stopping, len(ids)))
        if self.config.num_draft_paths > 1 and not target.takes_trees:
            raise ValueError(
                f"num_draft_paths={self.config.num_draft_paths}: {type(model).__name__} runs in the layout "
                f"'{target.layout}', which has no trees; allowed is 1"
            )
        plan, sampling = ProcessorPlan(processors), bool(generation_config.do_sample)
        verifier = self.config.verifier
        _check_verifier(verifier, sampling)
        call = DraftingCall(
            target=model,
            runner=target,
            state=state,
            plan=plan,
            sampling=sampling,
            draft_temperature=self.config.draft_temperature,
            generator=self.generator,
            stopwatch=stopwatch,
            prefill_chunk=generation_config.prefill_chunk_size,
            tokenizers=self.tokenizers,
            verifier=verifier.info,
            num_paths=self.config.num_draft_paths,
            takes_trees=target.takes_trees,
        )
        schedule = self.make_schedule(call)
        session = self.drafter.start(replace(call, signals=schedule.draft_signals, stopper=schedule.stopper))
        return SpeculativeLoop(
            state=state,
            target=target,
            session=session,
            schedule=schedule,
            verifier=verifier,
            plan=plan,
            stopping=stopping,
            draws=GeneratorDraws(self.generator, ids.device),
            recorder=Recorder(len(ids), ids.shape[1], **wanted),
            stopwatch=stopwatch,
            streamer=self.streamer,
            sampling=sampling,
        )

    def _layers(self, model: Any) -> tuple[int, ...]:
        """The target's hidden states that drafter and companion read."""
        return layers_to_see(self.drafter.target_layers(model), self.companion_model, model)

    def make_schedule(self, call: DraftingCall) -> Schedule:
        """The schedule of a call; calibration puts its own here."""
        return make_schedule(self.config, self.drafter, self.companion_model, call)

    def _check_companion(self, model: Any) -> None:
        if self.companion_model is None:
            return
        if isinstance(self.companion_model, FeatureHead):
            check_target(self.companion_model.head.config, model)
            return
        if not hasattr(self.companion_model, "get_input_embeddings"):
            raise TypeError(
                f"companion_model={self.companion_model!r}: allowed are a Transformers causal language model and a "
                "FeatureHead"
            )
        check_partner(model, self.companion_model, "companion_model")


_WARNED: set[str] = set()


def _check_verifier(verifier: Verifier, sampling: bool) -> None:
    """Warn of a lossy verifier, once per process and rule; refuse one that is not defined for a greedy target."""
    if not sampling and not verifier.matches_greedy:
        raise ValueError(
            f"verification={verifier.description!r} with do_sample=False: for a greedy target the rule would emit "
            "tokens that are not its choice; allowed: do_sample=True, or another rule"
        )
    name = verifier.info.name
    if not verifier.info.lossless and name not in _WARNED:
        _WARNED.add(name)
        warnings.warn(
            f"verification={verifier.description!r} is lossy: the output does not follow the target's law "
            "(require_lossless=True refuses such rules).",
            UserWarning,
            stacklevel=2,
        )


def _wanted_outputs(generation_config: Any) -> dict[str, bool]:
    wanted = bool(generation_config.return_dict_in_generate)
    names = ("scores", "logits", "hidden_states", "attentions")
    return {name: wanted and bool(getattr(generation_config, f"output_{name}")) for name in names}


def _prompt_mask(ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
    mask = model_kwargs.get("attention_mask")
    return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.to(ids.device).bool()


def _pad_token(generation_config: Any, stopping: Stopping, batch_size: int) -> int:
    """The token behind rows that end before others."""
    pad = generation_config._pad_token_tensor
    if pad is not None:
        return int(pad)
    if batch_size > 1 and (stopping.needs_text or stopping.times):
        raise ValueError(
            "pad_token_id=None: rows that a stopping criterion ends before others are filled up with it; allowed is "
            "any token id"
        )
    return 0


def enable(model: Any) -> None:
    """Let `model.generate` take `assistant_model=` with all our options; without one it is what it was.

    `assistant_model` and `companion_model` may be names too (Hub ids or folders): such a model is loaded on the first
    call and kept as long as this one.

    Sets the attribute `generate` of this one object, which is also how the host installs a repository's own
    generation. It survives copies of the model; `disable` removes it.

    Raises:
        TypeError: if `model` can't generate.
    """
    if not callable(getattr(type(model), "generate", None)):
        raise TypeError(f"model={model!r}: allowed are models with a generate method")
    if not is_enabled(model):
        model.generate = _Generate(model, vars(model).get("generate"))


def disable(model: Any) -> None:
    """Take back `enable`; a model that is not enabled is left alone."""
    if is_enabled(model):
        before = vars(model).pop("generate").before
        if before is not None:
            model.generate = before


@contextmanager
def enabled(model: Any) -> Iterator[Any]:
    """`enable` for the length of a `with` block; a model that was enabled before stays so."""
    was = is_enabled(model)
    enable(model)
    try:
        yield model
    finally:
        if not was:
            disable(model)


def is_enabled(model: Any) -> bool:
    """Whether `enable` was called on this object."""
    return isinstance(vars(model).get("generate"), _Generate)


# Of the host's assisted decoding; with an assistant of ours they would do nothing.
_HOST_DRAFTING = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "target_lookbehind",
    "max_matching_ngram_size",
    "speculation_type",
)


class _Generate:
    """`generate` of an enabled model: the host's, with our strategy where there is an assistant.

    An object and not a function, so that it goes along when the model is copied or pickled.
    """

    def __init__(self, model: Any, before: Any) -> None:
        self.model, self.before = model, before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        base = self.before or types.MethodType(type(self.model).generate, self.model)
        given = dict(zip(inspect.signature(base).parameters, args, strict=False)) | kwargs
        if isinstance(given.get("custom_generate"), str):  # a repository's own generation, which may be ours
            return base(*args, **kwargs)
        if given.get("assistant_model") is not None:
            return base(**_with_strategy(self.model, given))
        _refuse_without_assistant(given)
        ours = [name for name in _OPTIONS if name in kwargs]
        return base(*args, **{name: value for name, value in kwargs.items() if name not in ours})


def _refuse_without_assistant(given: dict[str, Any]) -> None:
    options = sorted(name for name in _OPTIONS if given.get(name) is not None)
    if options:
        raise ValueError(f"{options} need assistant_model: a draft model, a Drafter or a CandidateGenerator")
    if given.get("streamer") is not None and isinstance(given.get("custom_generate"), SpeculativeDecoding):
        raise ValueError("streamer does not reach custom_generate; allowed: SpeculativeDecoding(…, streamer=streamer)")


def _with_strategy(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The host's arguments for a call with an assistant: ours are taken off, and the strategy is put in."""
    if given.get("custom_generate") is not None:
        raise ValueError("custom_generate and assistant_model exclude each other on a model that is enabled")
    if given.get("synced_gpus"):
        raise ValueError("synced_gpus=True: ranks would run different numbers of passes; allowed: None or False")
    drafting = sorted(name for name in _HOST_DRAFTING if given.get(name) is not None)
    if drafting:
        raise ValueError(f"{drafting} would do nothing here; allowed: num_draft_tokens=, or a PromptLookup(…)")
    arguments = dict(given)
    options = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
    tokenizers = {name: arguments.pop(name, None) for name in ("tokenizer", "assistant_tokenizer")}
    draft = named_model(arguments.pop("assistant_model"), "assistant_model", model)
    options["companion_model"] = named_model(options.get("companion_model"), "companion_model", model)
    strategy = SpeculativeDecoding(draft, streamer=arguments.pop("streamer", None), **tokenizers, **options)
    strings = _stop_strings(model, arguments)
    if strings is not None:
        if tokenizers["tokenizer"] is None:
            raise ValueError(f"stop_strings={strings!r} need tokenizer=, the target's tokenizer")
        # The host would ask for the tokenizer that it has dropped.
        criterion = StopStringCriteria(stop_strings=strings, tokenizer=tokenizers["tokenizer"])
        arguments["stopping_criteria"] = [*(arguments.get("stopping_criteria") or []), criterion]
        arguments["stop_strings"] = None
    return {**arguments, "custom_generate": strategy}


def _stop_strings(model: Any, arguments: dict[str, Any]) -> Any:
    if "stop_strings" in arguments:
        return arguments["stop_strings"]
    configs = (arguments.get("generation_config"), model.generation_config)
    return next((c.stop_strings for c in configs if c is not None and c.stop_strings is not None), None)
