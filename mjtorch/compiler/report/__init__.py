"""Where nodes, memory and seconds of a compiled function go."""
