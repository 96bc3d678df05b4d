"""`python -m env_broker`."""

from env_broker.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
