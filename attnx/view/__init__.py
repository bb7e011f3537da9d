"""One file a view: a finished record in, a Rich renderable (or text, or bytes) out. Views never compute."""
