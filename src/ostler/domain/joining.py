"""What a machine is told when it may join: a secret, and by what it knows the hub before it tells that secret."""

from ostler.domain.errors import BadInput

MARK = "ostler-join"
HEX_DIGITS = 64


def invitation(fingerprint: str, secret: str) -> str:
    """`ostler-join.<fingerprint>.<secret>`; of a hub that is spoken to without TLS, the secret alone."""
    return f"{MARK}.{fingerprint}.{secret}" if fingerprint else secret


def read_invitation(text: str) -> tuple[str, str]:
    """The fingerprint, empty where there is none, and the secret."""
    if not text.startswith(f"{MARK}."):
        return "", text
    _, fingerprint, secret = [*text.split(".", 2), "", ""][:3]
    if len(fingerprint) != HEX_DIGITS or not set(fingerprint) <= set("0123456789abcdef") or not secret:
        raise BadInput(
            "the join token was cut, or is none: it is three words with a dot between them; copy all of it",
            [("token", "not a join token")],
        )
    return fingerprint, secret
