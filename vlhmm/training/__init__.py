"""Training: the loop and its steps, Baum-Welch, schedules, checkpoints, settings and presets."""
