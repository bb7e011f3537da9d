"""attnx: see what each token attends to, in any Transformer exported to ONNX.

    import attnx
    model = attnx.open("minilm")
    trace = model.trace("The animal didn't cross the street because it was too tired.")
    trace.attentions[5].weights[0, 11]          # [Q,K]: layer 5, head 11

Public names load on first use, so that `import attnx` stays instant.
"""

from __future__ import annotations

from attnx import formatters as _formatters
from attnx.version import __version__

TYPE_CHECKING = False  # typing takes some milliseconds to import
if TYPE_CHECKING:
    from typing import Any

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


def _register_formatters() -> None:
    """Register the views that draw records; each view is imported when it is first needed."""

    def mimebundle(record: Any) -> Any:
        from attnx.view.notebook import bundle

        return bundle(record)

    def bertviz(trace: Trace, tensor: Any) -> Any:
        from attnx.view.interop import to_bertviz

        return to_bertviz(trace, tensor)

    def circuitsvis(trace: Trace, layer: int) -> Any:
        from attnx.view.interop import to_circuitsvis

        return to_circuitsvis(trace, layer)

    def frame(trace: Trace, quantity: str) -> Any:
        from attnx.view.interop import to_frame

        return to_frame(trace, quantity)

    _formatters.register(mimebundle=mimebundle, bertviz=bertviz, circuitsvis=circuitsvis, frame=frame)


_register_formatters()


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "measure":
        return import_module("attnx.measure")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'attnx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
