"""The tiles of a blocked recursion's positions on a GPU, and what becomes of their gradients; `blocked_recursion` uses them."""
