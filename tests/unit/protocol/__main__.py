"""`python -m protocol explore COUNT [RULE …] [@SEED]`, `python -m protocol table COUNT [RULE …]`, from tests/unit."""

import sys

from .explore import main

if __name__ == "__main__":
    main(sys.argv[1:])
