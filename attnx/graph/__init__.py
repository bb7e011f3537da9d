"""A model file to proved axes: load, shapes, axes, probe, each built on the one before."""
