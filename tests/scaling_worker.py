"""One of several processes: runs commands one after the other, as `specverify` would; in the last one process 1 dies.

Argument: a JSON file with a list of arguments for each command.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from hf_specverify.cli import app
from hf_specverify.parts import Parts
from hf_specverify.sharding import Team

complete = Parts.complete


def die_after_a_part(self, team, total, settings, make, save, *more):
    """`Parts.complete` of which process 1 does not see the end."""

    def save_and_die(part, path):
        save(part, path)
        if team.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return complete(self, team, total, settings, make, save_and_die, *more)


def run(arguments):
    try:
        app(arguments)
    except SystemExit as end:  # as a command ends
        assert not end.code, arguments


if __name__ == "__main__":
    torch.set_num_threads(1)
    Team.leave = lambda team: None  # the next command goes on with the same connections
    *commands, last = json.loads(Path(sys.argv[1]).read_text())
    for arguments in commands:
        run(arguments)
    Parts.complete = die_after_a_part
    run(last)
