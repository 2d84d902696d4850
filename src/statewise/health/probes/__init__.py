"""What a copy of the module is asked, so that the real one is left alone: one question a file."""
