"""Notes about several sites, joined where the sites were run some at a time."""

from __future__ import annotations

import pickle

from attnx.notes import merged, of_all_heads, of_sites

SHORT, LONG = "{sites}: 5 positions", "{sites}: 10 positions"


def test_what_is_said_of_several_sites_is_one_note() -> None:
    whole = of_sites([("L0", SHORT), ("L1", LONG), ("L2", SHORT), ("L3", SHORT)])
    assert whole == ("L0 and 2 more: 5 positions", "L1: 10 positions")
    assert pickle.loads(pickle.dumps(whole))[0].sites == ("L0", "L2", "L3")
    parts = [of_sites([("L0", SHORT), ("L1", LONG)]), ("on the CPU", *of_sites([("L2", SHORT)])), whole[:1]]
    assert merged(*parts) == (*whole, "on the CPU")
    assert merged(whole, whole, ["on the CPU"] * 2) == (*whole, "on the CPU")
    assert merged() == of_all_heads([]) == of_sites([]) == ()


def test_of_a_site_is_said_what_is_said_of_all_its_heads() -> None:
    both = of_sites([("L0", SHORT), ("L0", LONG)])
    assert of_all_heads([(*both, "on the CPU"), both[1:], both]) == ("L0: 10 positions", "on the CPU")
