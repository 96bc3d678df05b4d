"""`python -m env_worker` is `env-worker`."""

from env_worker.cli import main

if __name__ == "__main__":
    main()
