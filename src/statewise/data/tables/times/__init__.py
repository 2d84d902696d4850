"""From what a file holds to moments in UTC, whole nanoseconds, one kind of notation a file."""
