"""`python -m ostler.cli` is `ostler`."""

from ostler.cli.main import main

main()
