"""`python -m ostler.cli` is `ostler`, too: services that an earlier build installed name this module."""

from ostler.cli.main import main

main()
