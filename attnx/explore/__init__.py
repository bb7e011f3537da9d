"""The explorer in the terminal: `reader.py` runs the model, and `desk.py` keeps what is being looked at.

`panes.py` draws it, `pane.py` puts it on the screen (`frame.py` defines where), `app.py` handles keys (`keyboard.py`:
bytes that are none), and `saving.py` writes files. Only app.py and pane.py import textual (extra `explore`).
"""
