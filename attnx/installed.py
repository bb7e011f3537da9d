"""How attnx was installed (index, folder, archive or repository), and the command that installs an extra of it.

Source: PEP 610, direct_url.json.
"""

from __future__ import annotations

from pathlib import Path


def pip(extra: str) -> str:
    """The command that installs an extra for this installation of attnx: `pip install '.[figures]'` in a clone.

    Args:
        extra: Its name.
    """
    return f"pip install {_what(extra)}"


def _what(extra: str) -> str:
    import json  # here: errors alone need it, and importlib.metadata brings the whole of email
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        found = metadata.distribution("attnx").read_text("direct_url.json")
        origin = json.loads(found) if found else {}
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return _folder(Path(__file__).parents[1], extra, editable=True) or f"'attnx[{extra}]'"
    url = origin.get("url", "")
    if "dir_info" in origin:
        path = Path(unquote(urlsplit(url).path))
        editable = bool(origin["dir_info"].get("editable"))
        return _folder(path, extra, editable=editable) or f"'attnx[{extra}]'"
    if "vcs_info" in origin:
        kind, commit = origin["vcs_info"].get("vcs", "git"), origin["vcs_info"].get("requested_revision")
        return f"'attnx[{extra}] @ {kind}+{url}{f'@{commit}' if commit else ''}'"
    if url:
        return f"'attnx[{extra}] @ {url}'"
    return f"'attnx[{extra}]'"


def _folder(path: Path, extra: str, *, editable: bool) -> str | None:
    """The path of a clone, relative to the working directory; None if it no longer exists."""
    if not (path / "pyproject.toml").is_file():
        return None
    try:
        here = path.samefile(Path.cwd())
    except OSError:
        here = False
    return f"{'-e ' if editable else ''}'{'.' if here else path}[{extra}]'"


__all__ = ["pip"]
