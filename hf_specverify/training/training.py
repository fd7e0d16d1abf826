"""Train a feature head for a target: texts, features, steps, and the folder that holds the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from ..command_output import progress_bar
from ..drafting.heads import AcceptanceHead, HeadModel, save_head
from ..drafting.heads.acceptance import save_acceptance
from ..drafting.heads.weights import layers_of
from .acceptance import RATE, AcceptanceQuality, acceptance_loss, judge, new_acceptance_head
from .card import write_card
from .examples import Examples, count_draft_ids
from .features import write_features
from .optimising import Optimising, head_loss, survival_shares
from .settings import HeadTraining
from .start import new_head
from .store import Store, check_same, write_json
from .texts import own_prompts, write_answers, write_texts

RECORD = "training.json"
WORK = "training"


@dataclass(frozen=True)
class HeadReport:
    """What a training made.

    Attributes:
        folder: of the head.
        parameters: its own.
        texts: that were trained on. tokens: in them. held_out: texts that were not.
        steps: of the optimiser.
        losses: mean loss of every epoch.
        survival: share of held-out places at which greedy drafts of 1, 2, … tokens are the target's choice throughout.
        acceptance: how well the acceptance head predicts on held-out texts; None where there is none.
    """

    folder: str
    parameters: int
    texts: int
    tokens: int
    held_out: int
    steps: int
    losses: tuple[float, ...]
    survival: tuple[float, ...]
    acceptance: AcceptanceQuality | None = None


def train_head(
    target: Any,
    out: str | Path,
    *,
    tokenizer: Any = None,
    prompts: Sequence[str] = (),
    texts: Sequence[str] = (),
    own: int = 0,
    settings: HeadTraining | None = None,
    target_name: str | None = None,
    licence: str | None = None,
    about: str = "",
    progress: bool = True,
    on_step: Callable[[int, float], None] | None = None,
) -> HeadReport:
    """Train a feature head, and write it to a folder that `FeatureHead.from_pretrained` loads (EAGLE-3, 2503.01840).

    The target answers prompts (or texts are taken as they are), reads all of it once, and what it thought is kept on
    disk. The head then learns to draft several tokens in a row, each from its own output of the step before, and a
    small network learns from the finished head what will be accepted. A run that was interrupted goes on where it was
    when it is called with the same arguments: its files are in `out/training`, and may be removed in the end. The
    target is only called.

    Args:
        target: a Transformers causal language model, in eval mode.
        out: folder of the head.
        tokenizer: the target's.
        prompts: what the target is to answer.
        texts: texts to learn from as they are.
        own: instructions that the target first writes itself and then answers; needs a chat template.
        settings: see `HeadTraining`.
        target_name: the target's on the Hub, for the head's files; None: what its configuration says.
        licence: of the head, as the Hub names it, for the card.
        about: said in the card: where prompts and texts are from, with which command it was made.
        progress: show progress bars on stderr.
        on_step: called after every step, with its number from 1 and its loss.

    Raises:
        ValueError, TypeError: for values that are not allowed, or if `out` holds a run with others.
    """
    settings = settings or HeadTraining()
    _check(target, tokenizer, prompts, texts, own, settings)
    folder = Path(out)
    work = folder / WORK
    check_same(_made(work) / "run.json", _identity(target, prompts, texts, own, settings))
    with progress_bar(not progress) as bars:
        files = _prepare(target, tokenizer, prompts, texts, own, settings, work, bars)
        draft_ids = count_draft_ids(target, Store(work, "texts"), files, settings.draft_vocab_size)
        head = new_head(target, draft_ids, settings, target_name)
        layers, features = layers_of(head.config, target), Store(work, "features")
        advance = _stage(bars, "the target reads the texts", files)
        write_features(target, layers, settings.kept, Store(work, "texts"), features, files, advance)
        path = work / "checkpoint.pt"
        run = Optimising(head, head_loss(head, settings), settings, path, settings.epochs, settings.learning_rate)
        examples = Examples(features, files, draft_ids, head.config.vocabulary, settings, run.device)
        if not examples.train:
            raise ValueError("prompts, texts, own: there is only one text to learn from; allowed are two or more")
        advance = _stage(bars, "the head learns", settings.epochs * examples.steps_per_epoch, run.step)
        losses = run.train(examples, advance, on_step)
        survived = survival_shares(head, examples, settings.unroll)
        acceptance, quality = _learn_acceptance(head, examples, settings, work, bars)
    save_head(head.to(torch.bfloat16), folder)
    save_acceptance(acceptance, folder)
    report = HeadReport(
        folder=str(folder),
        parameters=sum(part.numel() for part in head.parameters()),
        texts=len(examples.train),
        tokens=sum(examples.lengths[index] for index in examples.train),
        held_out=len(examples.held_out),
        steps=run.step,
        losses=tuple(losses),
        survival=tuple(survived),
        acceptance=quality,
    )
    record = {"settings": settings.as_json(), "result": {**asdict(report), "folder": folder.name}}
    write_json(folder / RECORD, record)
    (folder / "README.md").write_text(
        write_card(head.config, layers, settings, report, licence, about), encoding="utf-8"
    )
    return report


def _learn_acceptance(
    head: HeadModel, examples: Examples, settings: HeadTraining, work: Path, bars: Progress
) -> tuple[AcceptanceHead | None, AcceptanceQuality | None]:
    """The acceptance head of a head that has learned, and how well it predicts."""
    epochs = settings.acceptance_epochs
    if not epochs:
        return None, None
    acceptance, examples = new_acceptance_head(head, settings.seed), examples.unknown_to_the_head()
    # With another number of epochs every step has another learning rate, so such a checkpoint is not gone on from.
    path = work / f"acceptance-{epochs}.pt"
    run = Optimising(acceptance, acceptance_loss(acceptance, head, settings), settings, path, epochs, RATE)
    advance = _stage(bars, "its acceptance head learns", epochs * examples.steps_per_epoch, run.step)
    run.train(examples, advance, None)
    return acceptance, judge(acceptance, head, examples, settings.unroll)


def _prepare(
    target: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    texts: Sequence[str],
    own: int,
    settings: HeadTraining,
    work: Path,
    bars: Progress,
) -> int:
    """Write the files of texts; how many there are."""
    asked = [*prompts, *_own_prompts(target, tokenizer, own, settings, work, bars)]
    batches = -(-len(asked) // settings.generation_batch)
    store = Store(work, "texts")
    if batches:
        write_answers(target, tokenizer, asked, store, settings, _stage(bars, "the target answers prompts", batches))
    return batches + (write_texts(tokenizer, texts, store, settings, batches) if texts else 0)


def _own_prompts(
    target: Any, tokenizer: Any, count: int, settings: HeadTraining, work: Path, bars: Progress
) -> list[str]:
    path = work / "own_prompts.json"
    if count and not path.is_file():
        advance = _stage(bars, "the target writes prompts", -(-count // settings.generation_batch))
        write_json(path, own_prompts(target, tokenizer, count, settings, advance))
    return [str(text) for text in json.loads(path.read_text(encoding="utf-8"))] if count else []


def _check(
    target: Any, tokenizer: Any, prompts: Sequence[str], texts: Sequence[str], own: int, settings: HeadTraining
) -> None:
    if not isinstance(settings, HeadTraining):
        raise TypeError(f"settings={settings!r}: allowed are a HeadTraining and None")
    for name, values in (("prompts", prompts), ("texts", texts)):
        if isinstance(values, str) or not all(isinstance(value, str) for value in values):
            raise TypeError(f"{name}={values!r}: allowed is a sequence of texts")
    if type(own) is not int or own < 0:
        raise ValueError(f"own={own!r}: allowed are integers from 0")
    if not (prompts or texts or own):
        raise ValueError("prompts, texts, own: there is nothing to learn from; allowed: at least one of them")
    if tokenizer is None:
        raise ValueError("tokenizer=None: prompts and texts need the target's tokenizer")
    if target.training:
        raise ValueError("target: it is in training mode; allowed is a model after its eval()")


def _identity(
    target: Any, prompts: Sequence[str], texts: Sequence[str], own: int, settings: HeadTraining
) -> dict[str, Any]:
    """What the files of a run depend on, JSON values.

    The acceptance head is not among them: it comes after all else, so a finished run may still get one, or another.
    """
    said = {name: hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()
            for name, values in (("prompts", prompts), ("texts", texts))}  # fmt: skip
    model = {"class": type(target).__name__, "parameters": target.num_parameters(), "dtype": str(target.dtype)}
    depends = {name: value for name, value in settings.as_json().items() if name != "acceptance_epochs"}
    return {**depends, **said, "own": own, "target": model}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _stage(bars: Progress, name: str, total: int, done: int = 0) -> Callable[[], None]:
    task = bars.add_task(name, total=total, completed=done)
    return lambda: bars.advance(task)
