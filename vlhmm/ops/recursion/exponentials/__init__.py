"""The factors of a dense HMM made ready for its recursion on a GPU: `ops.recursion.dense` calls these kernels."""
