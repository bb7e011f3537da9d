"""One file a measurement: records in, Measurements out. numpy only; measures do not import one another."""
