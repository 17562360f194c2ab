"""Tables of papers: files that say what to run, results as they were measured, and both beside the paper's numbers."""
