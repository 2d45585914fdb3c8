"""Robots on legs that follow commands of velocity, on flat and on rough ground."""
