"""Rounding operands for the matrix units."""
