"""`python -m ostler` is the command `ostler`."""

from ostler.cli.main import main

main()
