"""The frame around the panes: their layout, and the help."""

CSS = """
Screen { layout: vertical; layers: base over; }
#top { height: 1fr; }
#grid { margin: 0 1; height: 100%; }
#head { margin: 0 1 0 0; width: 1fr; height: 100%; }
#looks { margin: 0 1; }
#status { height: 1; background: $panel; }
.few #status { background: transparent; text-style: reverse; }
Input { layer: over; dock: bottom; display: none; height: 3; }
#help { layer: over; display: none; border: round $primary; width: 62; height: 17; padding: 0 1;
  max-width: 100%; max-height: 100%; }
#help.shown { display: block; }
"""
"""Textual's style sheet. `few` is a terminal of 16 colours or none."""

HELP = """arrows, hjkl   layer (up, down) and head (left, right)
n p            next and previous token (also tab)
/              find a token, by its text or position
1 2 3 4 5      weights, softmax without scaling,
               scores, scaled, masked
m M            the measure that colours the grid
a              ablate every head: does it matter?
v              heatmap, lines, numbers
c              colours: linear, log, each row its own
w              pieces or words
x z            mute special tokens; leave sinks out
e              edit the text and run it
s              save the head: txt svg html png pdf
               csv npz parquet
? esc  q       this help, and away with it; quit"""
