"""The steps of a training, with checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..drafting.heads import HeadModel
from .examples import Example, Examples
from .settings import HeadTraining
from .unroll import multi_step_loss, survival, unroll

_WARM_UP, _LAST_RATE, _LARGEST_GRADIENT = 0.05, 0.1, 1.0


class Optimising:
    """A network while it is trained; it goes on from a checkpoint if there is one.

    What a step does follows from the weights, the state of the optimiser and the step's number, so that an interrupted
    training ends with the weights of one that was not.

    Args:
        network: a head, or its acceptance head, in float32.
        loss: of a batch.
        settings: see there.
        path: of the checkpoint.
        epochs: times that every text is read.
        learning_rate: the highest.

    Attributes:
        step: steps done.
        device: where it trains.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[Example], Tensor],
        settings: HeadTraining,
        path: Path,
        epochs: int,
        learning_rate: float,
    ) -> None:
        accelerator = Accelerator()
        if accelerator.num_processes > 1:
            raise ValueError(f"num_processes={accelerator.num_processes}: heads are trained in one; allowed is 1")
        self.accelerator, self.settings, self.path = accelerator, settings, path
        self.loss, self.epochs, self.learning_rate = loss, epochs, learning_rate
        self.device: torch.device = accelerator.device
        network.train().requires_grad_(True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, betas=(0.9, 0.95))
        self.network, self.optimizer = accelerator.prepare(network, optimizer)
        self.step = 0
        self.losses: list[float] = []
        if path.is_file():
            saved = torch.load(path, map_location=self.device, weights_only=True)
            self.network.load_state_dict(saved["head"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.losses = saved["step"], saved["losses"]

    def train(
        self, examples: Examples, advance: Callable[[], None], on_step: Callable[[int, float], None] | None
    ) -> list[float]:
        """Take the steps that are left; the mean loss of every epoch."""
        size, total = examples.steps_per_epoch, self.epochs * examples.steps_per_epoch
        with torch.enable_grad():
            while self.step < total:
                texts = examples.batches_of_epoch(self.step // size)[self.step % size]
                self.losses.append(self._take(examples.batch(texts), total))
                self.step += 1
                if self.step % self.settings.checkpoint_every == 0 or self.step == total:
                    self._save()
                if on_step is not None:
                    on_step(self.step, self.losses[-1])
                advance()
        self.network.eval().requires_grad_(False)
        means = [self.losses[begin : begin + size] for begin in range(0, total, size)]
        return [sum(part) / len(part) for part in means]

    def _take(self, example: Example, total: int) -> float:
        """One step; its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * rate(self.step, total)
        loss = self.loss(example)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.network.parameters(), _LARGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _save(self) -> None:
        """Write the checkpoint; the old one stays whole until the new one is."""
        state = {
            "head": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": self.losses,
        }
        unfinished = self.path.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(self.path)


def head_loss(head: HeadModel, settings: HeadTraining) -> Callable[[Example], Tensor]:
    """What a head learns by."""

    def loss(example: Example) -> Tensor:
        with precision(head, settings):
            scores = unroll(head, example.tokens, example.features, settings.unroll)
        return multi_step_loss(scores, example.laws, settings.step_decay)

    return loss


def precision(head: HeadModel, settings: HeadTraining) -> torch.autocast:
    """Under which a head works in training."""
    return torch.autocast(head.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16")


def survival_shares(head: HeadModel, examples: Examples, steps: int) -> list[float]:
    """By number of tokens, the share of held-out places at which greedy drafts are right throughout."""
    counts, places = torch.zeros(steps), 0
    with torch.no_grad():
        for example in examples.held_out_batches():
            alive, judged = survival(unroll(head, example.tokens, example.features, steps), example.laws)
            counts += alive.cpu()
            places += int(judged)
    shares: list[float] = (counts / max(places, 1)).tolist()
    return shares


def rate(step: int, total: int) -> float:
    """The learning rate of a step, as a share of the highest."""
    warm_up = max(1, round(_WARM_UP * total))
    if step < warm_up:
        return (step + 1) / warm_up
    done = (step - warm_up) / max(1, total - warm_up)
    return _LAST_RATE + (1 - _LAST_RATE) * (1 + math.cos(math.pi * done)) / 2
