"""What loop programs are printed for: CPUs, GPUs."""
