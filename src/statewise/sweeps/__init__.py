"""Many runs: their jobs, each a process of its own, the table that grows with them, and the page that compares them."""
