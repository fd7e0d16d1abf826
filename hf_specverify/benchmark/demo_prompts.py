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
def average(numbers):
    total = 0
    for number in numbers:
        total = total + number
    return total / len(numbers)

def variance(numbers):
    mean = average(numbers)
    squares = [(number - mean) ** 2 for number in numbers]
    return average(squares)
```

Rewrite the code above with type hints."""

FIX_FUNCTION = """Here is a Python function:

```python
def longest_word(words):
    longest = words[0]
    for word in words:
        if len(word) > len(longest):
            longest = word
    return longest
```

It crashes when the list is empty. Write the function again with a check for an empty list at the start."""

QUOTE_TEXT = """Quote the first two sentences of this text word for word.

The harbour of Elmsund froze over on the second of December, three weeks earlier than anyone could remember. The ferry \
stayed at its berth, the fishing boats were pulled up on the beach, and the children walked to school across the ice. \
Only the old lighthouse keeper was worried, for the lamp oil was nearly gone and the next ship was due on Friday."""

TRANSLATE_JSON = """Translate this JSON into Spanish:

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
    (ADD_TYPE_HINTS, FIX_FUNCTION, QUOTE_TEXT, TRANSLATE_JSON),
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
