"""Exact inference: functions of tables and tokens, independent of any `nn.Module`."""
