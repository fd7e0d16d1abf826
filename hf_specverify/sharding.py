"""Several processes at one job: who does what, and what they agree on.

`accelerate launch` and `torchrun` start the same command in every process. Work is cut into numbered pieces before it
is dealt out, and nothing in a piece depends on the process that makes it; so the result is the same for any number of
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object, get_int_from_env

from .benchmark.environment import default_device

Result = TypeVar("Result")

# A process that has done its share waits for the others. The death of one is seen at once (its connection closes), so
# the limit only has to be longer than the slowest share.
PATIENCE = timedelta(days=7)
_WORLD = ["WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"]
_LOCAL_WORLD = ["LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"]


@dataclass(frozen=True)
class Team:
    """The processes of a job, seen from one of them.

    Attributes:
        rank: of this process, from 0.
        size: number of processes, on all machines.
        local_size: of them, those on this machine.
        device: of this process.
        together: whether all of them hold one model (tensor parallelism) and so must do the same work.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    device: torch.device = field(default_factory=default_device)
    together: bool = False

    @classmethod
    def join(cls, together: bool = False) -> Team:
        """The team that the launcher's environment describes; connects its processes. One process is a team too."""
        if get_int_from_env(_WORLD, 1) <= 1:
            return cls(together=together)
        accelerated = torch.accelerator.is_available()
        # What is agreed on are small objects in host memory; NCCL alone would take a kernel of each GPU for them.
        backend = {"backend": "cuda:nccl,cpu:gloo"} if torch.cuda.is_available() else {}
        state = PartialState(cpu=not accelerated, timeout=PATIENCE, **backend)
        device = torch.device("cpu") if state.device.type == "cpu" else state.device  # not "cpu:0"
        local_size = get_int_from_env(_LOCAL_WORLD, 1)
        return cls(state.process_index, state.num_processes, local_size, device, together)

    @property
    def is_first(self) -> bool:
        """Whether this process shows progress, merges and writes results."""
        return self.rank == 0

    @property
    def keeps(self) -> bool:
        """Whether this process writes down what it makes."""
        return self.is_first or not self.together

    def share(self, numbers: Sequence[int]) -> list[int]:
        """The pieces of work of this process: every size-th, or all where the processes work together."""
        return list(numbers if self.together else numbers[self.rank :: self.size])

    def decide(self, make: Callable[[], Result]) -> Result:
        """What `make` gives in the first process, for all of them.

        Raises:
            ValueError, OSError: what the first process met, in all of them.
        """
        outcome: list[Any] = [None]
        if self.is_first:
            try:
                outcome = [make()]
            except (ValueError, OSError) as error:
                outcome = [error]
        if self.size > 1:
            broadcast_object_list(outcome)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return cast("Result", outcome[0])

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            gather_object([self.rank])

    def leave(self) -> None:
        """Close the connections."""
        if self.size > 1:
            PartialState().destroy_process_group()
