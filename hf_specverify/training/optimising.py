"""The steps of a training, with checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from ..drafting.heads import HeadModel
from .examples import Example, Examples
from .settings import HeadTraining
from .unroll import multi_step_loss, survival, unroll

_WARM_UP, _LAST_RATE, _LARGEST_GRADIENT = 0.05, 0.1, 1.0


class Optimising:
    """A head while it is trained; it goes on from a checkpoint if there is one.

    What a step does follows from the weights, the state of the optimiser and the step's number, so that an interrupted
    training ends with the weights of one that was not.

    Args:
        head: the head, in float32.
        settings: see there.
        path: of the checkpoint.

    Attributes:
        step: steps done.
        device: where it trains.
    """

    def __init__(self, head: HeadModel, settings: HeadTraining, path: Path) -> None:
        accelerator = Accelerator()
        if accelerator.num_processes > 1:
            raise ValueError(f"num_processes={accelerator.num_processes}: heads are trained in one; allowed is 1")
        self.accelerator, self.settings, self.path = accelerator, settings, path
        self.device: torch.device = accelerator.device
        head.train().requires_grad_(True)
        optimizer = torch.optim.AdamW(head.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95))
        self.head, self.optimizer = accelerator.prepare(head, optimizer)
        self.step = 0
        self.losses: list[float] = []
        if path.is_file():
            saved = torch.load(path, map_location=self.device, weights_only=True)
            self.head.load_state_dict(saved["head"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.losses = saved["step"], saved["losses"]

    def train(
        self, examples: Examples, advance: Callable[[], None], on_step: Callable[[int, float], None] | None
    ) -> list[float]:
        """Take the steps that are left; the mean loss of every epoch."""
        size, total = examples.steps_per_epoch, self.settings.epochs * examples.steps_per_epoch
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
        self.head.eval().requires_grad_(False)
        means = [self.losses[begin : begin + size] for begin in range(0, total, size)]
        return [sum(part) / len(part) for part in means]

    def _take(self, example: Example, total: int) -> float:
        """One step; its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate(self.step, total)
        with self._precision():
            scores = unroll(self.head, example.tokens, example.features, self.settings.unroll)
        loss = multi_step_loss(scores, example.laws, self.settings.step_decay)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.head.parameters(), _LARGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _precision(self) -> torch.autocast:
        wanted = self.settings.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=wanted)

    def _save(self) -> None:
        """Write the checkpoint; the old one stays whole until the new one is."""
        state = {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": self.losses,
        }
        unfinished = self.path.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(self.path)

    def survival(self, examples: Examples) -> list[float]:
        """By number of tokens, the share of held-out places at which greedy drafts are right throughout."""
        counts, places = torch.zeros(self.settings.unroll), 0
        with torch.no_grad():
            for begin in range(0, len(examples.held_out), self.settings.batch_size):
                example = examples.batch(examples.held_out[begin : begin + self.settings.batch_size])
                scores = unroll(self.head, example.tokens, example.features, self.settings.unroll)
                alive, judged = survival(scores, example.laws)
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
