"""Quaternions, spatial vectors and small dense linear algebra; equations only, tensors in and tensors out."""

__helper__ = True  # in reports, its operations are those of its callers
