"""`python -m env_client`."""

import sys

from env_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
