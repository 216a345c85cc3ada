"""`python -m shmbroker` is the command `shmbroker`."""

from shmbroker.cli import main

if __name__ == "__main__":
    main(prog_name="shmbroker")
