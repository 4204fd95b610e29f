"""What of the documentation is made from the code: `make reference` writes it, tests/docs compares it."""
