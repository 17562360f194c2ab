"""What comes before and after a dense HMM's recursion on its way back, on a GPU: `ops.recursion.dense` calls these kernels."""
