"""A warp on the host: what is printed for GPUs, tested without one."""
