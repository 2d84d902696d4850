"""From raw rows to a checked table: what each column is for, moments in UTC, numbers, order."""
