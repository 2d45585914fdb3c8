"""From loop programs to loop programs."""
