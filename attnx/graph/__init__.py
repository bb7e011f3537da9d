"""From a model file to proved axes: load, shapes, axes, masks, each built on the ones before it."""
