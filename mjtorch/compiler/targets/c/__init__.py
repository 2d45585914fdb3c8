"""What the targets have in common that are printed in a language of C's family."""
