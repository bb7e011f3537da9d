"""What is asked of a long text, reduced inside the graph: no matrix of every head leaves the session."""
