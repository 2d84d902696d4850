"""What is odd in files, what training would make of them, and whether anything leaks."""
