"""See the package's docstring."""

import sys

from .explore import main

if __name__ == "__main__":
    main(sys.argv[1:])
