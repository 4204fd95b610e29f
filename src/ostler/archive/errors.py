"""What can keep an archive from being unpacked."""


class BadArchive(Exception):
    """It is not unpacked: whoever made it makes it anew."""


class Stopped(Exception):
    """Nobody wants it any more."""
