"""Loop programs as C++: a world in each lane of a vector."""
