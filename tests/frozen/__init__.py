"""What must not change when code moves: records of its answers, and tests that hold the code against them.

`python -m tests.frozen record` (in the root of the repository) writes the records, `python -m tests.frozen record queries`
some of them. Everything that is imported from inside the package is imported in `entry_points.py`.
"""
