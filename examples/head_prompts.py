"""Write instructions to train a feature head on: chat, code, and answers that repeat parts of their prompts.

Every instruction is put together from the lists below, so that none is from a benchmark. Usage:

    python examples/head_prompts.py prompts.jsonl --count 4000 --seed 0
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path


def listed(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]


TOPICS = listed("""
    a lighthouse; volcanoes; the water cycle; honey bees; electric cars; chess; the moon; bread; rivers;
    clouds; bicycles; tea; the heart; vaccines; sleep; running; money; taxes; elections; a library; the
    printing press; glaciers; coral reefs; whales; owls; mushrooms; tomatoes; rice; steel; glass;
    batteries; magnets; light; sound; gravity; atoms; bacteria; dinosaurs; castles; pyramids; samurai;
    pirates; trains; airplanes; bridges; maps; clocks; calendars; poetry; opera; jazz; painting;
    photography; cinema; football; swimming; climbing; camping; gardening; cooking; baking; coffee;
    chocolate; cheese; pasta; soup; salad; a birthday party; a job interview; a first day at school;
    moving house; a new phone; a broken window; a lost key; a rainy day; a snowstorm; a desert; a
    jungle; an island; a small village; a big city; a night train; a museum; a hospital; a farm; a
    garage; a bookshop; a market; friendship; courage; patience; honesty; anger; hope; memory; habits;
    stress; learning a language; saving energy; recycling; growing old; being a parent
""")
PEOPLE = listed("""
    a teacher; a nurse; a baker; a farmer; a student; a grandmother; a detective; a sailor; a robot; a
    young queen; a painter; a carpenter; a cook; a doctor; a bus driver; a musician; a scientist; a
    shepherd; an engineer; a judge; a gardener; a twin; a thief; a pilot; a librarian; a tailor; a
    fisherman; a clown; a mayor; a beginner
""")
NAMES = listed("""
    Anna; Ben; Clara; David; Emma; Felix; Greta; Hugo; Ida; Jonas; Klara; Leo; Mia; Noah; Olga; Paul; Rosa; Sam; Tina;
    Viktor
""")
THINGS = listed(
    "apples; pencils; tickets; books; coins; stamps; marbles; cookies; bottles; chairs; flowers; eggs; boxes; shirts"
)
PLACES = listed(
    "Oslo; Lisbon; Kyoto; Cairo; Lima; Quebec; Dublin; Prague; Hanoi; Nairobi; Athens; Vienna; Seoul; Delhi; Havana"
)
LANGUAGES = listed("Python; JavaScript; Java; C++; Go; Rust; SQL; Bash")
TASKS = listed("""
    reverses a string; checks whether a number is prime; sums the even numbers of a list; finds the
    largest value; counts the words of a text; removes duplicates from a list; sorts a list of
    dictionaries by a key; merges two sorted lists; computes the factorial; returns the n-th Fibonacci
    number; checks whether a word is a palindrome; counts vowels; converts Celsius to Fahrenheit;
    flattens a nested list; groups words by their first letter; finds common elements of two lists;
    rotates a list by k places; computes the greatest common divisor; validates an email address; reads
    a CSV file; writes a dictionary to JSON; parses a date; generates a random password; computes the
    average; finds the longest word; transposes a matrix; multiplies two matrices; counts the characters
    of a string; implements a stack; implements a queue; implements binary search; implements bubble
    sort; draws a triangle of stars; converts a number to binary; retries a function three times;
    measures the time of a function; caches results; downloads a page; splits a list into chunks; checks
    balanced brackets
""")
WORDS = listed("""
    tree; house; river; stone; bird; winter; summer; morning; letter; garden; window; road; market;
    bread; fire; boat; story; silver; green; quiet; old; small; heavy; bright; slow; warm; empty; round;
    hidden
""")
FIELDS = {
    "name": NAMES,
    "city": PLACES,
    "colour": ["red", "blue", "green", "yellow"],
    "food": ["soup", "rice", "bread", "salad"],
    "day": ["Monday", "Tuesday", "Friday", "Sunday"],
    "animal": ["dog", "cat", "horse", "parrot"],
}
FORMS = [
    "in three sentences",
    "in one paragraph",
    "to a child",
    "to an expert",
    "with an example",
    "step by step",
    "as a list of five points",
    "in simple words",
    "as a dialogue",
    "with advantages and disadvantages",
]

Draw = random.Random


def sentence(draw: Draw) -> str:
    who, where = draw.choice(PEOPLE), draw.choice(PLACES)
    ends = [
        f"went to {where} by train",
        f"wrote a letter about {draw.choice(TOPICS)}",
        f"found a {draw.choice(WORDS)}",
        f"sold {draw.randint(2, 40)} {draw.choice(THINGS)} at the market",
        f"met {draw.choice(NAMES)} in the rain",
        f"painted the {draw.choice(WORDS)} {draw.choice(WORDS)}",
        "could not sleep",
        "was late for dinner",
    ]
    return f"{who[0].upper()}{who[1:]} from {draw.choice(PLACES)} {draw.choice(ends)}."


def passage(draw: Draw) -> str:
    return " ".join(sentence(draw) for _ in range(draw.randint(3, 6)))


def explain(draw: Draw) -> str:
    starts = [
        "Explain {}",
        "Describe {}",
        "What should I know about {}? Answer",
        "Tell me about {}",
        "Write about {}",
        "Why do people care about {}? Answer",
        "What are common mistakes with {}? Answer",
    ]
    return f"{draw.choice(starts).format(draw.choice(TOPICS))} {draw.choice(FORMS)}."


def story(draw: Draw) -> str:
    kind = draw.choice(
        ["short story", "poem", "fairy tale", "letter", "diary entry", "scene of a play", "joke", "song"]
    )
    return f"Write a {kind} about {draw.choice(PEOPLE)} and {draw.choice(TOPICS)}."


def advice(draw: Draw) -> str:
    starts = [
        "I am {0} and want to know more about {1}. Where do I begin?",
        "Give {0} five tips about {1}.",
        "How would {0} plan a weekend around {1}?",
        "What questions would {0} ask about {1}?",
        "Help {0} to write an email about {1}.",
        "Compare {1} and {2} for {0}.",
    ]
    return draw.choice(starts).format(draw.choice(PEOPLE), draw.choice(TOPICS), draw.choice(TOPICS))


def code(draw: Draw) -> str:
    language, task = draw.choice([*["Python"] * 6, *LANGUAGES]), draw.choice(TASKS)
    starts = [
        "Write a {} function that {}.",
        "Write a {} program that {}, with comments.",
        "Show me how {} code {}.",
        "In {}, write a function that {}, and test it.",
        "Write a {} class that {}. Explain it.",
    ]
    return draw.choice(starts).format(language, task)


def edit_code(draw: Draw) -> str:
    first, second, third = draw.sample(WORDS, 3)
    lines = [
        f"class {first.title()}:",
        f"    def __init__(self, {second}, {third}):",
        f"        self.{second} = {second}",
        f"        self.{third} = {third}",
        "",
        f"    def {draw.choice(['add', 'update', 'change'])}(self, amount):",
        f"        self.{third} = self.{third} + amount",
        f"        return self.{third}",
    ]
    what = [
        "Annotate the types in this class.",
        "Add a docstring to every method.",
        f"Rename {second} to {third}_name.",
        "What is wrong with this class?",
        "Explain this code line by line.",
        "Add a method that prints all fields.",
    ]
    block = "\n".join(lines)
    return f"```python\n{block}\n```\n\n{draw.choice(what)}"


def repeat(draw: Draw) -> str:
    text = passage(draw)
    swapped = [word[1] + word[0] + word[2:] if len(word) > 6 and draw.random() < 0.2 else word for word in text.split()]
    what = [
        "Copy the first sentence of the following lines.",
        "Summarise this text.",
        "Who is mentioned in this text?",
        "Repeat this text word for word.",
        "Put this text into the present tense.",
        "Write one more sentence.",
    ]
    if draw.random() < 0.3:
        return f"Fix the spelling of the lines below:\n\n{' '.join(swapped)}"
    return f"{draw.choice(what)}\n\n{text}"


def data(draw: Draw) -> str:
    rows = [
        {name: draw.choice(values) for name, values in draw.sample(sorted(FIELDS.items()), 3)}
        for _ in range(draw.randint(1, 3))
    ]
    what = [
        "Put the values of this object into Spanish",
        "Turn this JSON into a table",
        "Add a field 'id' to this JSON",
        "Return this JSON with keys in capital letters",
        "Describe this JSON in words",
    ]
    return f"{draw.choice(what)}:\n\n```json\n{json.dumps(rows if len(rows) > 1 else rows[0], indent=2)}\n```"


def sums(draw: Draw) -> str:
    one, other = draw.sample(NAMES, 2)
    thing, first, second, times = draw.choice(THINGS), draw.randint(3, 60), draw.randint(2, 30), draw.randint(2, 6)
    return draw.choice(
        [
            f"{one} has {first} {thing} and buys {second} more. {other} has {times} times as many. How many in all?",
            f"A box holds {second} {thing}. How many boxes does {one} need for {first * second} {thing}?",
            f"{one} sells {first} {thing} for {times} dollars each and spends {second} dollars. How much is left?",
            f"A train to {draw.choice(PLACES)} takes {times} hours at {first + 40} km per hour. How far is it?",
        ]
    )


KINDS: dict[Callable[[Draw], str], int] = {
    explain: 5,
    story: 4,
    advice: 4,
    code: 5,
    edit_code: 2,
    repeat: 3,
    data: 2,
    sums: 3,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, found = Draw(arguments.seed), dict[str, None]()
    while len(found) < arguments.count:
        found[draw.choices(list(KINDS), list(KINDS.values()))[0](draw)] = None
    lines = [json.dumps({"prompt": prompt}) for prompt in found]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
