"""`python train.py OVERRIDES`: train a state-space model. See README.md, or `python train.py --help`."""

import sys
from pathlib import Path

try:
    from statewise.train import main
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"{error.name} is not installed in this Python: run `make train` in {Path(__file__).parent}, "
        "or `pip install -e . -c constraints.txt` there first\n"
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
