"""Which files are meant, and their rows as they were read: nothing is interpreted yet."""
