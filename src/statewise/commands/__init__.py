"""What the `statewise` command does beside training, one file for each of its subcommands."""
