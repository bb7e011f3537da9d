"""One file a view: a finished record in, a Rich renderable (or text, or bytes) out. Views never compute.

    page, cells, colour        where it is drawn, and plain lines; text that is safe and straight; scales of colour
    matrix, scale              a [Q,K] matrix with its labels, cut or averaged to fit; values to places on a scale
    strokes, thumbs            bars, sparklines, curves, thumbnails: what views draw with
    everything else            a view each; they do not import one another

A renderable asks the console that prints it for width, height, colours and encoding, so the same one serves a
terminal of any kind, a pipe, an SVG and the explorer. A pipe has no width: print there with a very wide console.
"""
