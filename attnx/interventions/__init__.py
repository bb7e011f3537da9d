"""Interventions: edit a model's graph so that heads, positions and edges are inputs of one session."""
