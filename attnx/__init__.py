"""attnx: see what each token attends to, in any Transformer exported to ONNX.

    import attnx
    model = attnx.open("minilm")
    trace = model.trace("The animal didn't cross the street because it was too tired.")
    trace.attentions[5].weights[0, 11]          # [Q,K]: layer 5, head 11

Public names load on first use, so that `import attnx` stays instant.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes some milliseconds to import
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "open": "attnx.model",
    "Model": "attnx.model",
    "Trace": "attnx.records",
    "Attention": "attnx.records",
    "Site": "attnx.records",
    "Miss": "attnx.records",
    "Tokens": "attnx.records",
    "Measurement": "attnx.records",
    "Axis": "attnx.records",
    "AttnxError": "attnx.errors",
}
_FORMATTERS = ("attnx.view.notebook", "attnx.view.interop")
"""What registers how records look outside a terminal."""
__all__ = [*_WHERE, "__version__", "measure"]

if TYPE_CHECKING:
    from attnx.errors import AttnxError as AttnxError
    from attnx.model import Model as Model
    from attnx.model import open as open
    from attnx.records import Attention as Attention
    from attnx.records import Axis as Axis
    from attnx.records import Measurement as Measurement
    from attnx.records import Miss as Miss
    from attnx.records import Site as Site
    from attnx.records import Tokens as Tokens
    from attnx.records import Trace as Trace


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "measure":
        return import_module("attnx.measure")
    if name in _WHERE:
        found = getattr(import_module(_WHERE[name]), name)
        if _WHERE[name] != "attnx.errors":
            for formatter in _FORMATTERS:
                import_module(formatter)
        return found
    raise AttributeError(f"module 'attnx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
