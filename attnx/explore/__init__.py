"""The explorer in the terminal: `desk.py` holds what is looked at, `panes.py` draws it, `app.py` answers keys.

Only app.py imports textual (extra `explore`).
"""
