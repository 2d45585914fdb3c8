"""Programs as one C++ file with a C interface, which needs nothing but a C++ compiler."""
