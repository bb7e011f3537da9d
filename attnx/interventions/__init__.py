"""Interventions: a model's graph edited so that heads, positions and edges are inputs of one session."""
