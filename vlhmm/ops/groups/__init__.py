"""Groups of states along a window: which moves happen, and positions sorted by group."""
