"""Sensors: for each stage of the computation a table from sensor type to function."""

from mjtorch.sensor.acceleration import sensor_acc
from mjtorch.sensor.memory import remembered
from mjtorch.sensor.position import sensor_pos
from mjtorch.sensor.velocity import sensor_vel

__all__ = ["remembered", "sensor_acc", "sensor_pos", "sensor_vel"]
