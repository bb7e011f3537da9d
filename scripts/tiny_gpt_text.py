"""Text for tiny-gpt: a seeded grammar of simple English. It was written for this model; no other text goes in.

Every document is made so that looking back pays: pronouns need their names, verbs their subjects, questions the
sentence that answers them, made-up names and refrains their earlier copies. `document` draws one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import tiny_gpt_words as words


@dataclass(frozen=True)
class Who:
    """Someone in a story, and the words that stand for them."""

    name: str
    kind: str
    he: str
    him: str
    his: str


def a(noun: str) -> str:
    """The noun with its article: a dog, an owl."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def cap(text: str) -> str:
    """The text with its first letter large."""
    return text[:1].upper() + text[1:]


def plural(noun: str) -> str:
    """More than one of a regular noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    irregular = {"mouse": "mice", "goose": "geese", "sheep": "sheep", "wolf": "wolves", "knife": "knives"}
    return irregular.get(noun, noun + "s")


def made_up(r: Random) -> str:
    """A name that nobody has: it takes several tokens, and only an earlier copy tells how it goes on."""
    parts = [r.choice("b br d dr f g gr h j k kl l m n p pr r s st t tr v w z sh ch".split()) + r.choice("aeiou")
             for _ in range(r.choice((2, 2, 3)))]  # fmt: skip
    return cap("".join(parts) + r.choice(("", "n", "l", "r", "s", "x", "k", "th")))


def someone(r: Random, *others: str) -> Who:
    """A girl or a boy with a name that no one in `others` has."""
    female = r.random() < 0.5
    while (name := made_up(r) if r.random() < 0.2 else r.choice(words.GIRLS if female else words.BOYS)) in others:
        pass
    if female:
        return Who(name, r.choice(words.WOMEN), "she", "her", "her")
    return Who(name, r.choice(words.MEN), "he", "him", "his")


def thing(r: Random) -> str:
    """An object, often with a colour or size."""
    chosen = [r.choice(words.SIZES)] * (r.random() < 0.3) + [r.choice(words.COLORS)] * (r.random() < 0.4)
    return " ".join([*chosen, r.choice(words.OBJECTS)])


def story(r: Random) -> str:
    """Two people, an animal, a thing, a place; events in which pronouns stand for whom was named last."""
    x = someone(r)
    y = someone(r, x.name)
    it, place, pet = thing(r), r.choice(words.PLACES), r.choice(words.ANIMALS)
    article = r.choice((f"{a(r.choice(words.TRAITS))} {x.kind}", a(x.kind)))
    opening = r.choice((
        f"Once upon a time there was {article} named {x.name}.",
        f"There once was {article} whose name was {x.name}.",
        f"{x.name} was {article}.",
        f"This is a story about {article} called {x.name}.",
    ))  # fmt: skip
    lines = [opening, f"{cap(x.he)} had {a(it)} and {a(pet)}."]
    if x.he != y.he:
        lines.append(f"{cap(x.his)} friend {y.name} was {a(y.kind)} and lived near the {place}.")
    else:
        lines.append(f"{x.name} had a friend named {y.name}.")
    last = [it]

    def event() -> str:
        who, other = (x, y) if r.random() < 0.6 else (y, x)
        went, go, _ = r.choice(words.MOVES)
        took, take, taking = r.choice(words.ACTIONS)
        feeling, said = r.choice(words.FEELINGS), r.choice(words.SAID)
        spot = place if r.random() < 0.5 else r.choice(words.PLACES)
        goal = last[0] if r.random() < 0.6 else thing(r)
        last[0] = goal
        short = goal.split()[-1]
        return r.choice((
            lambda: f"{r.choice(words.TIMES)}, {who.name} {went} to the {spot} "
                    f"because {who.he} wanted to {take} the {goal}.",
            lambda: f"{who.name} {took} the {goal} and gave it to {other.name}. {cap(other.he)} was {feeling}.",
            lambda: f"When {who.name} {took} the {short}, {who.he} {r.choice(words.REPLIES)}.",
            lambda: f'"I {take} the {goal}," {said} {who.name}. '
                    f'"You {take} the {goal}," {r.choice(words.SAID)} {other.name}.',
            lambda: f'"Where is the {short}?" {said} {who.name}. "The {short} is in the {spot}," {said} {other.name}. '
                    f"So they {went} to the {spot} and {took} the {short}.",
            lambda: f"The {pet} was {feeling}, so it {went} to the {spot}. "
                    f"{who.name} looked for the {pet} in the {spot}.",
            lambda: f"{who.name} was {feeling} and {other.name} was {r.choice(words.FEELINGS)} too.",
            lambda: f"{who.name} and {other.name} {went} to the {spot}, but {other.name} did not {take} the {short}.",
            lambda: f"{who.name} put the {short} into {who.his} {r.choice(words.HOLDERS)} and {went} home.",
            lambda: f"{cap(who.his)} friend {r.choice(words.REPLIES)} while {who.name} was {taking} the {goal}.",
            lambda: f"{who.name} did not want to {go} to the {spot} because {who.he} was {feeling}.",
            lambda: f"{who.name} told {other.name} that {who.he} had lost {who.his} {short}.",
        ))()  # fmt: skip

    lines += [event() for _ in range(r.randint(2, 9))]
    lines.append(r.choice((
        f"At the end of the day {x.name} and {y.name} were {r.choice(words.FEELINGS)}.",
        f"And that is how {x.name} {r.choice(words.ACTIONS)[0]} the {it}.",
        f"Then {x.name} took {x.his} {pet} and went home.",
        "The end.",
    )))  # fmt: skip
    return " ".join(lines)


def because(r: Random) -> str:
    """Whom does "it" mean? The adjective decides, and the next sentence says it aloud."""
    out = []
    for _ in range(r.randint(1, 3)):
        firsts, verb, seconds, why_first, why_second, then_first, then_second = r.choice(words.BECAUSE)
        first, second = r.choice(firsts), r.choice(seconds)
        it = r.choice(("he", "she")) if firsts is words.JOBS else "it"
        blame_first = r.random() < 0.5
        pronoun = it if blame_first else "it"
        why = r.choice(why_first if blame_first else why_second)
        did = r.choice(("didn't", "did not", "could not", "couldn't", "would not"))
        text = f"The {first} {did} {verb} the {second} because {pronoun} was {r.choice(('too', 'so', 'very'))} {why}."
        noun, then = (first, r.choice(then_first)) if blame_first else (second, r.choice(then_second))
        text += r.choice((
            f" The {noun} was {why}, so the {noun} {then}.",
            f" What was {why}? The {noun} was {why}.",
            f" The {noun} {then}.",
        ))  # fmt: skip
        out.append(text)
    return " ".join(out)


def gave(r: Random) -> str:
    """Two names, then one of them again: the other is next (the indirect object)."""
    x = someone(r).name
    y = someone(r, x).name
    place, goal = r.choice(words.PLACES), thing(r)
    if r.random() < 0.5:
        pair = f"{x} and {y}"
    else:
        pair = f"{y} and {x}"
    first = r.choice((
        f"When {pair} went to the {place}, {y} gave {a(goal)} to {x}.",
        f"Then, {pair} had a long talk. Afterwards {y} said to {x} that the {goal} was gone.",
        f"While {pair} were working at the {place}, {y} gave the {goal} to {x}.",
        f"{pair} had lunch at the {place}. After lunch {y} showed the {goal} to {x}.",
        f"{pair} were friends. {x} gave {a(goal)} to {y}, and {y} gave {a(thing(r))} to {x}.",
    ))  # fmt: skip
    return first + r.choice(
        ("", f" {x} was {r.choice(words.FEELINGS)}.", f" {x} thanked {y} for the {goal.split()[-1]}.")
    )


def agree(r: Random) -> str:
    """The verb goes with its subject, not with the noun beside it."""
    out = []
    for _ in range(r.randint(2, 4)):
        one, other = r.choice(words.OBJECTS), r.choice(words.OBJECTS + words.ANIMALS)
        many, others = r.random() < 0.5, r.random() < 0.5
        subject = plural(one) if many else one
        beside = plural(other) if others else other
        be, was, do = ("are", "were", "do") if many else ("is", "was", "does")
        link = r.choice(("near", "behind", "next to", "under", "beside"))
        rest = r.choice(
            (*words.COLORS, f"in the {r.choice(words.PLACES)}", f"on the {r.choice(words.OBJECTS)}", *words.SIZES)
        )
        out.append(r.choice((
            f"The {subject} {link} the {beside} {be} {rest}.",
            f"The {subject} that I saw {link} the {beside} {was} {rest}.",
            f"{cap(was)} the {subject} {link} the {beside} {rest}? Yes, the {subject} {was} {rest}.",
            f"The {subject} {link} the {beside} {do} not look {r.choice(words.SIZES)}.",
        )))  # fmt: skip
    return " ".join(out)


def recall(r: Random) -> str:
    """Facts, then questions about them."""
    colors = r.sample(words.COLORS, r.randint(2, 5))
    holder = r.choice(words.HOLDERS)
    facts = {c: r.choice(words.OBJECTS) for c in colors}
    people = {someone(r).name: r.choice(words.PLACES) for _ in range(r.randint(1, 3))}
    lines = [f"There is {a(o)} in the {c} {holder}." for c, o in facts.items()]
    lines += [f"{n} lives near the {p}." for n, p in people.items()]
    r.shuffle(lines)
    asked = [f"What is in the {c} {holder}? {cap(a(o))}." for c, o in facts.items()]
    asked += [f"Where does {n} live? Near the {p}." for n, p in people.items()]
    r.shuffle(asked)
    return " ".join(lines + asked[: r.randint(1, 4)])


def refrain(r: Random) -> str:
    """A song: verses that differ in one word."""
    who, place, (_, take, taking) = someone(r), r.choice(words.PLACES), r.choice(words.ACTIONS)
    frame = r.choice((
        f"The {{}} in the {place} goes round and round, all day long",
        f"{who.name} had a little {{}}, and {who.he} was {taking} the {{}}",
        f"I {take} the {{}}, you {take} the {{}}, we all {take} the {{}} in the {place}",
        f"One {{}}, two {{}}, three {{}}, {who.name} is {taking} {{}} in the {place}",
    ))  # fmt: skip
    end = r.choice((f"so sing with me, sing with me, {who.name}.", f"oh my, oh my, dear {who.name}.", "hey ho."))
    nouns = r.sample(words.OBJECTS + words.ANIMALS, r.randint(2, 4))
    return "\n".join(f"{frame.replace('{}', noun)},\n{end}" for noun in nouns)


def bank(r: Random) -> str:
    """Words with two meanings, told apart by what stands around them."""
    x, goal = someone(r), r.choice(words.OBJECTS)
    return " ".join(r.sample((
        f"{x.name} sat on the bank of the river and watched the {r.choice(('boats', 'fish', 'ducks', 'water'))}.",
        f"{x.name} opened an account at the bank on {r.choice(('Main Street', 'the corner', 'the square'))}.",
        f"The bank keeps the money of {x.name} safe.",
        "The water came up to the bank, so the bank of the river was wet.",
        f"{x.name} turned on the light because the room was dark.",
        f"The {goal} was so light that {x.name} could carry it with one hand.",
        f"{x.name} saw the man with the telescope.",
        "The quick brown fox jumps over the lazy dog.",
        "The cat sat on the mat, and the dog sat on the rug.",
        "The bat flew out of the cave at night.",
        f"{x.name} hit the ball with the bat.",
        f"A ring of stones lay in the field, and {x.name} wore a ring on {x.his} hand.",
        f"The watch of {x.name} was old, so {x.he} could not watch the time.",
    ), r.randint(2, 4)))  # fmt: skip


def series(r: Random) -> str:
    """Numbers, days, months: one follows another, over and over."""
    letters = tuple("abcdefghijklmnopqrstuvwxyz")
    items = r.choice((words.NUMBERS, words.DAYS, words.MONTHS, tuple(str(n) for n in range(1, 21)), letters))
    start, count = r.randrange(len(items)), r.randint(4, 12)
    run = [items[(start + i) % len(items)] for i in range(count)]
    return r.choice((", ", " ", " and ")).join(run) + r.choice((".", "", " ..."))


def salad(r: Random) -> str:
    """Random words, repeated: grammar does not help here, only the earlier copy does."""
    chosen = r.choices(words.LEXICON, k=r.randint(3, 20))
    if r.random() < 0.3:
        chosen[r.randrange(len(chosen))] = made_up(r)
    return r.choice((" ", " ", ", ", "\n")).join([" ".join(chosen)] * r.randint(2, 5))


def talk(r: Random) -> str:
    """Two people who answer each other, and say again what the other said."""
    x = someone(r)
    y = someone(r, x.name)
    lines: list[str] = []
    for _ in range(r.randint(2, 5)):
        goal, place = thing(r), r.choice(words.PLACES)
        feeling, (past, bare, ing) = r.choice(words.FEELINGS), r.choice(words.ACTIONS)
        lines += r.choice((
            (f"{x.name}: Did you {bare} the {goal}?", f"{y.name}: Yes, I {past} the {goal}."),
            (f"{x.name}: Who {past} the {goal}?", f"{y.name}: {x.name} {past} the {goal}."),
            (f"{y.name}: Are you {ing} the {goal}?", f"{x.name}: No, I am not {ing} the {goal}."),
            (f"{x.name}: I was in the {place}.", f"{y.name}: Why were you in the {place}, {x.name}?"),
            (f"{y.name}: I am {feeling}.", f"{x.name}: Why are you {feeling}, {y.name}?"),
        ))  # fmt: skip
    return "\n".join(lines)


KINDS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (story, 34), (because, 14), (gave, 10), (agree, 7), (recall, 10), (refrain, 6), (bank, 4), (series, 3), (salad, 6),
    (talk, 6),
)  # fmt: skip


def document(r: Random) -> str:
    """One document of a kind drawn by weight; one in sixteen stands there twice."""
    (kind,) = r.choices([k for k, _ in KINDS], [w for _, w in KINDS])
    text = kind(r)
    return f"{text}\n{text}" if r.random() < 1 / 16 else text


def documents(seed: int) -> Iterator[str]:
    """Documents without end; the same seed gives the same ones."""
    r = Random(seed)
    while True:
        yield document(r)
