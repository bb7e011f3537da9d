"""The explorer in the terminal: the model is run in `reader.py`, what is looked at is held in `desk.py`.

It is drawn by `panes.py` and put on the screen by `pane.py` (`frame.py` says where), `app.py` answers keys, and
`saving.py` writes files. Only app.py and pane.py import textual (extra `explore`).
"""
