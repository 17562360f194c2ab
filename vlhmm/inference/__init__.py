"""Exact inference: functions of tables and tokens. They know no `nn.Module`."""
