"""The backward pass of a dense HMM's recursion, on a GPU: `ops.recursion.dense` calls these kernels."""
