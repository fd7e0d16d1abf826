"""The demo's own prompts: half of a kind where prompt lookup helps, half of a kind where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PromptGroup:
    """Prompts that are measured together and get a table of their own.

    Attributes:
        name: short key, for machines.
        title: stands over the table.
        prompts: what the user says, without chat template.
    """

    name: str
    title: str
    prompts: tuple[str, ...]

    @classmethod
    def from_file(cls, file_name: str, prompts: Sequence[str]) -> PromptGroup:
        """Group the prompts of a user's file: whether lookup helps there is for the run to show."""
        return cls("file", f"Prompts of {file_name}", tuple(prompts))


ADD_TYPE_HINTS = """```python
class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        self.balance = self.balance - amount
        return self.balance
```

Rewrite this code with type hints."""

QUOTE_TEXT = """Quote the first two sentences of this text word for word.

The harbour of Elmsund froze over on the second of December, three weeks earlier than anyone could remember. The ferry \
stayed at its berth, the fishing boats were pulled up on the beach, and the children walked to school across the ice. \
Only the old lighthouse keeper was worried, for the lamp oil was nearly gone and the next ship was due on Friday."""

CORRECT_TEXT = """Correct the mistakes in this text:

Every morning at five the baker of Rosehill lihgts the oven and puts the first loaves on the long wooden tabel. By six \
the smell of fresh bread has reached the school, the station and the houses behind the church. At seven the door opens \
and the first customers buy rolls, rye bread and a peice of plum cake for the train."""

TRANSLATE_JSON = """Translate the values in this JSON to French and return the JSON:

```json
{
  "title": "Opening hours",
  "monday": "closed",
  "tuesday": "from nine to five",
  "wednesday": "from nine to five",
  "thursday": "from nine to seven",
  "sunday": "closed"
}
```"""

LOOKUP_HELPS = PromptGroup(
    "lookup_helps",
    "Prompt lookup helps here: answers repeat parts of their prompts",
    (ADD_TYPE_HINTS, QUOTE_TEXT, CORRECT_TEXT, TRANSLATE_JSON),
)

LOOKUP_DOES_NOT_HELP = PromptGroup(
    "lookup_does_not_help",
    "Prompt lookup does not help here: answers are new text",
    (
        "Write a short story about a clockmaker who finds a door behind an old clock.",
        "What should I think about before I adopt a dog from a shelter?",
        "Explain to a ten-year-old why the sky is blue in the day and red in the evening.",
        "I have a free Saturday in a city that I do not know. How would you spend it?",
    ),
)

BUILT_IN = (LOOKUP_HELPS, LOOKUP_DOES_NOT_HELP)
STREAMED = QUOTE_TEXT
