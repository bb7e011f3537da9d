"""Datasets in the forms in which their authors publish them; sentences are our own, shaped alike."""

import json

import pytest

from attnx.errors import InputError
from attnx.measure.coref_data import OCCUPATIONS, bundled, parse, read


def said(example):
    """The words of an example: pronoun, candidates, and the answer."""
    words = [example.text[a:b] for a, b in example.candidates]
    return example.text[slice(*example.pronoun)], words, words[example.answer]


XML = """<?xml version="1.0" encoding="UTF-8"?>
<collection>
  <schema>
    <text><txt1>The old tram could not climb the hill because</txt1><pron>it</pron><txt2>was too weak.</txt2></text>
    <quote><quote1></quote1><pron>it</pron><quote2>was too weak</quote2></quote>
    <answers><answer>The old tram</answer><answer>the hill</answer></answers>
    <correctAnswer> A  </correctAnswer><source>(ours)</source>
  </schema>
  <schema>
    <text><txt1>The old tram could not climb the hill because</txt1><pron>it</pron><txt2>was too steep.</txt2></text>
    <answers><answer>The old tram</answer><answer>the hill</answer></answers>
    <correctAnswer>B.</correctAnswer>
  </schema>
  <schema>
    <text><txt1>My aunt wrote to Rosa about
      <!-- a line break as in the file --> </txt1><pron>her</pron><txt2>, and was glad.</txt2></text>
    <answers><answer>My aunt</answer><answer>Rosa</answer></answers>
    <correctAnswer>B</correctAnswer>
  </schema>
  <schema>
    <text><txt1>They met and</txt1><pron>he</pron><txt2>left.</txt2></text>
    <answers><answer>Tim</answer><answer>Bob</answer></answers>
    <correctAnswer>A</correctAnswer>
  </schema>
</collection>
"""


def test_winograd_xml():
    got = parse(XML, ".xml")
    assert got.name == "Winograd"
    assert [said(one) for one in got.examples] == [
        ("it", ["old tram", "hill"], "old tram"),
        ("it", ["old tram", "hill"], "hill"),
        ("her", ["aunt", "Rosa"], "Rosa"),
    ]
    assert got.examples[0].pair == got.examples[1].pair != got.examples[2].pair
    assert got.examples[2].text == "My aunt wrote to Rosa about her, and was glad."
    assert got.skipped == ("entry 4: 'Tim' does not stand in 'They met and he left.'",)


def test_winograd_json():
    text = "Pia took the cake from Olga because she was hungry."
    entries = [
        {"text": text, "pronoun": "she", "pronoun_loc": text.index("she"), "quote": "she was hungry", "quote_loc": 0,
         "options": ["Pia", "Olga"], "label": 0, "source": "ours"},
    ]  # fmt: skip
    got = parse(json.dumps(entries), ".json")
    assert [said(one) for one in got.examples] == [("she", ["Pia", "Olga"], "Pia")]


def test_winobias():
    lines = (
        "1 [The baker] shouted at the driver because [he] spilled the flour.\n"
        "2 The baker shouted at [the driver] because [he] blocked the road.\n"
        "\n"
        "3 [The construction worker] met the CEO and gave [her] a helmet.\n"
        "4 [The baker] smiled because [he] won.\n"
        "5 Nobody is in brackets.\n"
    )
    got = parse(lines, ".txt")
    assert got.name == "WinoBias"
    assert [said(one) for one in got.examples] == [
        ("he", ["baker", "driver"], "baker"),
        ("he", ["baker", "driver"], "driver"),
        ("her", ["construction worker", "CEO"], "construction worker"),
    ]
    assert got.examples[0].text == "The baker shouted at the driver because he spilled the flour."
    assert got.examples[0].pair == got.examples[1].pair != got.examples[2].pair
    assert [line.split(":")[0] for line in got.skipped] == ["entry 4", "entry 5"]
    assert len(set(OCCUPATIONS)) == 40


GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"


def test_gap():
    text = 'Lena "Leni" Falk met Dora Stein before she moved.'
    row = [
        text,
        "she",
        str(text.index("she")),
        "Falk",
        str(text.index("Falk")),
        "TRUE",
        "Dora Stein",
        str(text.index("Dora")),
    ]
    none = [*row[:5], "FALSE", *row[6:]]
    lines = ["\t".join(["t-1", *row, "FALSE", "u"]), "\t".join(["t-2", *none, "FALSE", "u"])]
    got = parse(GAP + "\n".join(lines), ".tsv")
    assert [said(one) for one in got.examples] == [("she", ["Falk", "Dora Stein"], "Falk")]
    assert got.skipped == ("entry 2: t-2: neither of the names is meant",)


def test_jsonl_and_what_is_wrong_with_it():
    good = {"text": "a saw b and it ran", "pronoun": [12, 14], "candidates": [[0, 1], [6, 7]], "answer": 1, "pair": "p"}
    outside = good | {"pronoun": [30, 32]}
    overlap = good | {"candidates": [[0, 3], [2, 5]]}
    wrong = good | {"answer": 2}
    got = parse("\n".join(map(json.dumps, (good, outside, overlap, wrong))), ".jsonl")
    assert [said(one) for one in got.examples] == [("it", ["a", "b"], "b")]
    assert got.skipped == (
        "entry 2: a span lies outside the text",
        "entry 3: spans overlap",
        "entry 4: answer 2 is not one of 2 candidates",
    )


def row(number="1", text="The dog chased Bob because it was tired.", **changed):
    """A row of GAP's table; offsets are counted by hand: "it" at 27, "dog" at 4, "Bob" at 15."""
    fields = {"Pronoun": "it", "Pronoun_offset": "27", "A": "dog", "A_offset": "4", "A_coref": "TRUE"}
    fields |= {"B": "Bob", "B_offset": "15", "B_coref": "FALSE", "URL": "u"}
    return "\t".join([number, text, *(fields | changed).values()])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"Pronoun_offset": "26"}, "'it' does not stand at character 26: ' i' does"),
        ({"A_offset": "3"}, "'dog' does not stand at character 3: ' do' does"),
        ({"B_offset": "99"}, "'Bob' does not stand at character 99: the text ends before"),
        ({"text": 'The "dog" chased Bob because it was tired.'}, "'it' does not stand at character 27: 'e ' does"),
        ({"A_coref": "yes"}, "A-coref is 'yes', and TRUE or FALSE was expected"),
        ({"B_coref": "1"}, "B-coref is '1', and TRUE or FALSE was expected"),
    ],
)
def test_gap_whose_words_do_not_stand_where_it_says(changed, why):
    got = parse(GAP + row() + "\n" + row("2", **changed), ".tsv")
    assert [said(one) for one in got.examples] == [("it", ["dog", "Bob"], "dog")]
    assert got.skipped == (f"entry 2: 2: {why}",)


def test_winograd_whose_pronoun_does_not_stand_where_it_says():
    entry = {"text": "Pia fed Olga because she was hungry.", "pronoun": "she", "options": ["Pia", "Olga"], "label": 0}
    got = parse(json.dumps([entry | {"pronoun_loc": at} for at in (21, 20)]), ".json")
    assert [said(one) for one in got.examples] == [("she", ["Pia", "Olga"], "Pia")]
    assert got.skipped == ("entry 2: 'she' does not stand at character 20: ' sh' does",)


@pytest.mark.parametrize("letter", ["C", "AB", "", "1"])
def test_winograd_whose_answer_is_no_letter_of_a_candidate(letter):
    got = parse(XML.replace("<correctAnswer>B.</", f"<correctAnswer>{letter}.</"), ".xml")
    assert len(got.examples) == 2
    assert got.skipped[0] == f"entry 2: correctAnswer is {letter!r}, and one of A, B was expected"


def test_a_single_candidate_is_no_choice():
    one = {"text": "a saw b and it ran", "pronoun": [12, 14], "candidates": [[0, 1]], "answer": 0}
    two = one | {"candidates": [[0, 1], [6, 7]]}
    got = parse("\n".join(map(json.dumps, (one, two))), ".jsonl")
    assert [said(each) for each in got.examples] == [("it", ["a", "b"], "a")]
    assert got.skipped == ("entry 1: 1 candidate: there is nothing to choose between",)


@pytest.mark.parametrize(
    ("content", "suffix", "match"),
    [
        ('{"text": "a", "pronoun": [0, 1], "candidates": [], "answer": 0}\n\n{', ".jsonl", "line 3 is not JSON"),
        ('{"text": "a", "answer": 0, "answer": 1}', ".jsonl", "line 1 has 'answer' twice, with different values"),
        ('[{"label": 0, "label": 1}]', ".json", "an entry has 'label' twice, with different values"),
        ("{", ".jsonl", "is not a pairs file"),
        ('{"text": "a"}', ".jsonl", "is not a pairs file"),
        ("<a>", ".xml", "is not a Winograd file"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", ".xml", "declares XML entities"),
        ("[1]", ".json", "is not a Winograd file"),
        ("a\tb\n1\t2", ".tsv", "is not a GAP file"),
        ("", ".jsonl", "holds no example"),
        ("plain text", ".txt", "holds no example as WinoBias"),
    ],
)
def test_files_of_another_kind(content, suffix, match):
    with pytest.raises(InputError, match=match):
        parse(content, suffix)


def test_read(tmp_path):
    path = tmp_path / "WSCollection.xml"
    path.write_text(XML, encoding="utf-8")
    assert len(read(path).examples) == 3
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read(tmp_path / "b.jsonl")


def test_the_pairs_that_ship():
    got = bundled()
    assert got.skipped == ()
    pairs = {}
    for one in got.examples:
        pairs.setdefault(one.pair, []).append(one)
    assert len(pairs) >= 40
    assert len({one.text for one in got.examples}) == len(got.examples)
    for one, two in pairs.values():
        assert {one.answer, two.answer} == {0, 1}
        assert [said(x)[0] for x in (one, two)] == [said(one)[0]] * 2
        assert said(one)[1] == said(two)[1]
    for one in got.examples:
        pronoun, words, _ = said(one)
        assert pronoun in ("it", "he", "she", "him", "her")
        assert len(words) == 2
        assert all(word.isalpha() for word in words)
        # Every candidate stands before the pronoun, so that a causal model sees it.
        assert all(end <= one.pronoun[0] for _, end in one.candidates)
        assert one.text[0].isupper()
        assert one.text.endswith(".")
        assert "  " not in one.text


GOOD = {"text": "A dog saw it.", "pronoun": [10, 12], "candidates": [[2, 5]], "answer": 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pronoun": None}, r"line 1 has no field 'pronoun'; it has text, candidates, answer"),
        ({"pronoun": [10.5, 12]}, r"pronoun is '\[10.5, 12\]', and \[start, end\], in characters, was expected"),
        ({"pronoun": "it"}, "pronoun is 'it'"),
        ({"candidates": 3}, "candidates is '3', and a list was expected"),
        ({"candidates": [[2, True]]}, "candidates is"),
        ({"answer": 0.5}, "answer is '0.5', and a whole number"),
        ({"answer": True}, "answer is 'True'"),
        ({"answer": float("inf")}, "answer is 'inf'"),
        ({"answer": "²"}, "answer is '²'"),
        ({"text": 5}, "text is '5', and a text was expected"),
    ],
)
def test_a_field_that_is_missing_or_no_number_is_named(change, said):
    with pytest.raises(InputError, match=said):
        parse(json.dumps(GOOD | change), ".jsonl")


def test_fields_of_tables_and_of_other_entries_are_named():
    with pytest.raises(InputError, match="row 1 has no field 'A-coref'; it has a, b"):
        parse("a\tb\n1\t2", ".tsv")
    with pytest.raises(InputError, match="row 1 has no field 'B-coref'"):  # the row is too short
        parse("A-coref\tB-coref\nTRUE", ".tsv")
    with pytest.raises(InputError, match="entry 1 is not an object"):
        parse("[1]", ".json")
    with pytest.raises(InputError, match="holds no list"):
        parse("{}", ".json")
    with pytest.raises(InputError) as caught:
        parse(json.dumps({"pronouns": 1} | {k: v for k, v in GOOD.items() if k != "pronoun"}), ".jsonl")
    assert caught.value.hint == "Did you mean 'pronouns'?"


def test_lines_end_at_line_feeds_alone():
    text = "A dog\u2028saw it\x85."
    line = json.dumps(GOOD | {"text": text, "candidates": [[2, 5], [0, 1]]}, ensure_ascii=False)
    assert parse(f"{line}\r\n{line}\n", ".jsonl").examples[1].text == text
