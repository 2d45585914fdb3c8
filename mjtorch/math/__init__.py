"""Quaternions, spatial vectors and small dense linear algebra; equations only, tensors in and tensors out."""
