"""What was compiled, kept on disk."""
