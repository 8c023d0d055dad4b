"""`python -m once_idempotency`: the program that the client finds. A package that carries it has it as the command `once`."""

import os
import sys

from ._address import _find


def main() -> None:
    try:
        program = _find(None)
    except ValueError as error:
        sys.exit(f"once: {error}")
    if os.path.realpath(program) == os.path.realpath(sys.argv[0]):  # It would start itself for ever.
        sys.exit(f"once: {program} is this command, not the program: set ONCE_PROGRAM to the program's path")
    os.execvp(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
