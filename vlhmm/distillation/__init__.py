"""Distillation: teachers, text sampled from them, latent variable distillation."""
