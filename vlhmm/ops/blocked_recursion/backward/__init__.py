"""The backward pass of a blocked recursion, on a GPU: `blocked_recursion.launch` calls these kernels."""
