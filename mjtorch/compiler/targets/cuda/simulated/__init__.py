"""One warp of a GPU, simulated from the PTX of a program: what it computes, what it executes, and how long it takes."""
