r"""Text -> Tokens.

    tokenizer = load_tokenizer("models/minilm")        # a folder, a tokenizer file, or the model beside it
    tokens = tokenizer.encode("The animal didn't cross the street because it was too tired.")
    find(tokens, "it")                                 # (10,): positions; "it@10" where the text repeats, "10" too
    group_words(tokens)                                # positions by word, for merging pieces

What the records promise, made exact here:

- `pieces` are ready to show. A leading space is a plain space (" the"), whatever the vocabulary writes for it; "##ed"
  keeps its mark; a piece that is nothing but spaces is "␠" for each; control and invisible characters are shown as
  symbols or escapes ("␊", "␛", "\u202e"), so that no piece can reach a terminal raw; bytes that are only part of a
  character are shown as "\xf0\x9f". Without a tokenizer, a piece is "#" and its id.
- `offsets` leave out a token's own leading and trailing spaces; a piece of spaces alone may have an empty span.
- `words` are words in a reader's sense (`attnx.tokens.words`): "didn't" and "well-known" are one, punctuation is apart.
- With a pair, `text` is both texts joined by a line break, and offsets and words go on through it.
- `type_ids` are what the tokenizer gives the model: 0 throughout where it does not tell segments apart.

The `tokenizers` package is imported when a tokenizer is loaded, not before. Nothing here uses the network.
"""

from attnx.tokens.encode import Tokenizer
from attnx.tokens.files import find_limit
from attnx.tokens.find import find
from attnx.tokens.ids import from_ids, pad, parse_ids
from attnx.tokens.load import load_tokenizer
from attnx.tokens.pieces import visible
from attnx.tokens.words import group_words, label

__all__ = [
    "Tokenizer",
    "find",
    "find_limit",
    "from_ids",
    "group_words",
    "label",
    "load_tokenizer",
    "pad",
    "parse_ids",
    "visible",
]
