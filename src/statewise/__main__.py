"""`python -m statewise train ...`: the `statewise` command from any folder, and how jobs and ranks are started."""

from statewise.cli import main

if __name__ == "__main__":
    main()
