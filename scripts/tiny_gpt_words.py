"""The words of the stories that tiny-gpt is trained on: plain lists, written for it. `tiny_gpt_text.py` uses them."""

from __future__ import annotations

GIRLS = tuple(
    "Mia Anna Mary Emma Lily Sarah Jane Lucy Alice Rose Ella Clara Nora Ruth Grace Julia Laura Helen Eva Maria "
    "Sofia Hannah Kate Amy Zoe Leah Ada Ivy Nina Elena Olivia Martha Susan Karen Linda Diana Rachel Monica Paula Sue"
    .split()
)  # fmt: skip
BOYS = tuple(
    "Tom John Ben Peter James Sam Max Jack Paul David Leo Noah Adam Luke Mark Henry George Oscar Hugo Felix "
    "Simon Daniel Robert Michael William Thomas Martin Frank Eric Victor Joe Bill Bob Tim Alan Kevin Brian Steve Fred"
    .split()
)  # fmt: skip
WOMEN = tuple("girl woman queen mother sister grandmother lady aunt daughter princess".split())
MEN = tuple("boy man king father brother grandfather gentleman uncle son prince".split())
JOBS = tuple(
    "teacher doctor farmer baker nurse lawyer judge driver painter singer writer cook sailor soldier student "
    "captain engineer scientist gardener miller hunter shepherd tailor clerk librarian carpenter thief guard pilot poet"
    .split()
)  # fmt: skip
ANIMALS = tuple(
    "dog cat bird fox horse cow rabbit bear mouse duck frog sheep pig animal lion owl wolf goat monkey elephant "
    "tiger donkey hen fish snake turtle squirrel goose kitten puppy".split()
)
OBJECTS = tuple(
    "ball book box letter key cake apple hat boat kite lamp cup chair bag map coin ring trophy suitcase basket "
    "bottle picture flower stone candle clock table drum bell knife spoon plate shoe coat blanket umbrella telescope "
    "pencil toy doll ladder mirror bread egg cookie pear drink present jewel sword crown bucket rope feather".split()
)
HOLDERS = tuple("box bag suitcase basket drawer bottle cup chest jar bucket pocket cupboard".split())
PLACES = tuple(
    "park forest river house school garden store market beach hill bridge street road field farm kitchen library "
    "station city village mountain church castle lake shop museum hospital office island harbor cave town room sea "
    "tower barn valley".split()
)
WAYS = tuple("street road river bridge field lake yard square path stream".split())
COLORS = tuple("red blue green yellow white black brown pink orange purple grey golden silver".split())
SIZES = tuple("big small little tiny huge old new long round heavy light strange beautiful".split())
TRAITS = tuple("kind clever brave funny quiet young old gentle proud shy wise lazy honest".split())
FEELINGS = tuple(
    "happy sad tired hungry angry afraid cold thirsty sick surprised lonely excited bored proud worried sleepy busy "
    "late lost ready".split()
)
ADVERBS = tuple(
    "slowly quickly quietly loudly carefully happily sadly suddenly finally often always never again together alone "
    "today yesterday tomorrow now then soon away home outside inside".split()
)
NUMBERS = tuple("one two three four five six seven eight nine ten eleven twelve".split())
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS = tuple("January February March April May June July August September October November December".split())
TIMES = (
    "One day", "One morning", "One evening", "Last night", "In the morning", "In the evening", "After lunch", "At noon",
    "A long time ago", "In the winter", "In the summer", "At night", "The next day", "Later", "Every day",
)  # fmt: skip
# Past, bare form, -ing: of verbs that take a thing.
ACTIONS = (
    ("found", "find", "finding"), ("took", "take", "taking"), ("bought", "buy", "buying"), ("lost", "lose", "losing"),
    ("saw", "see", "seeing"), ("liked", "like", "liking"), ("wanted", "want", "wanting"), ("made", "make", "making"),
    ("carried", "carry", "carrying"), ("dropped", "drop", "dropping"), ("held", "hold", "holding"),
    ("hid", "hide", "hiding"), ("washed", "wash", "washing"), ("painted", "paint", "painting"),
    ("broke", "break", "breaking"), ("kept", "keep", "keeping"), ("opened", "open", "opening"),
    ("needed", "need", "needing"), ("loved", "love", "loving"), ("brought", "bring", "bringing"),
    ("watched", "watch", "watching"), ("remembered", "remember", "remembering"), ("sold", "sell", "selling"),
)  # fmt: skip
# The same, of verbs of moving and resting.
MOVES = (
    ("went", "go", "going"), ("walked", "walk", "walking"), ("ran", "run", "running"), ("drove", "drive", "driving"),
    ("came", "come", "coming"), ("rode", "ride", "riding"), ("returned", "return", "returning"),
    ("hurried", "hurry", "hurrying"), ("traveled", "travel", "traveling"), ("climbed", "climb", "climbing"),
)  # fmt: skip
REPLIES = tuple("laughed smiled nodded cried waited listened slept danced sang jumped sighed".split())
SAID = tuple("said asked answered whispered shouted called replied".split())
# Two words in one: who, did what not, to what; why if it is the first's fault, why if the second's; what follows each.
BECAUSE = (
    (ANIMALS, "cross", WAYS, ("tired", "slow", "afraid", "weak", "sick"), ("wide", "busy", "deep", "dangerous", "long"),
     ("lay down and slept", "needed to rest", "could not walk any more"),
     ("was full of water", "was not safe", "had no end")),
    (("trophy", "lamp", "book", "clock", "drum", "coat", "painting", "statue"), "fit in", HOLDERS,
     ("big", "large", "long", "wide", "tall"), ("small", "narrow", "short", "full", "little"),
     ("had to stay on the table", "was left at home"), ("was too little for it", "had no room")),
    (ANIMALS, "eat", ("apple", "bread", "egg", "cake", "fish", "pear", "cheese", "soup"),
     ("full", "sick", "shy", "sleepy", "sad"), ("hot", "old", "hard", "sour", "cold"),
     ("went back to sleep", "wanted to be alone"), ("had to be thrown away", "smelled bad")),
    (JOBS, "lift", ("box", "stone", "table", "bag", "suitcase", "ladder", "chest"),
     ("weak", "old", "tired", "young"), ("heavy", "big", "large", "wet"),
     ("sat down to rest", "called for help"), ("stayed where it was", "did not move at all")),
    (ANIMALS, "climb", ("hill", "mountain", "tree", "ladder", "wall", "tower"),
     ("tired", "old", "fat", "lazy", "hungry"), ("steep", "high", "tall", "icy"),
     ("stayed below", "turned around"), ("was higher than the clouds", "had no steps")),
)  # fmt: skip
GLUE = tuple(
    "the a an and but or so if when while before after because that which who what where why how this these those "
    "is are was were be been has have had do does did not no yes can could will would should may might must in on at "
    "to from of for with about under over near behind between into out up down very too more most some any all many "
    "much few every each other another same different only just also still even there here I you he she it we they "
    "me him her us them my your his its our their first last next good bad great long short high low hot cold right "
    "wrong true word sentence question answer name time day night year way thing place work life hand eye head water "
    "fire air sun moon star rain snow wind tree grass paper money music song game story friend family people child "
    "children world country number letter language attention model token layer query value weight".split()
)
LEXICON = (
    GLUE + OBJECTS + ANIMALS + PLACES + COLORS + GIRLS + BOYS + JOBS + FEELINGS + ADVERBS + NUMBERS + TRAITS
)  # fmt: skip
