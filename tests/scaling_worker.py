"""One of several processes: runs commands one after the other, as `specverify` would.

Arguments: a JSON file with lists of arguments, and, to die in the middle, the number of parts after which to do so.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from hf_specverify import parts
from hf_specverify.cli import app
from hf_specverify.sharding import Team


def die_after(count, complete):
    """`Parts.complete` of a process that is killed when it has made so many parts."""

    def dying(self, team, total, settings, make, save, on_part=None, warm_up=None):
        def save_and_die(part, path):
            save(part, path)
            if team.rank == 1 and sum(name.suffix == self.suffix for name in made) >= count:
                os.kill(os.getpid(), signal.SIGKILL)

        made = []

        def counted(number):
            made.append(self.path(number))
            return make(number)

        return complete(self, team, total, settings, counted, save_and_die, on_part, warm_up)

    return dying


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        parts.Parts.complete = die_after(int(sys.argv[2]), parts.Parts.complete)
    Team.leave = lambda team: None  # the next command goes on with the same connections
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        app(arguments, standalone_mode=False)
