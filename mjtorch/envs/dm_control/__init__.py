"""dm_control's suite."""
