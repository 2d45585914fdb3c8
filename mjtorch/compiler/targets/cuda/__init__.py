"""Programs for NVIDIA GPUs: the lanes of a warp compute one world together."""
