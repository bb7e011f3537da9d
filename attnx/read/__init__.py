"""What the measures read from a trace: rows, layers, streams of hidden states, words, mentions."""
