"""How much of anything the relay bears with, and for how long."""

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True):
    head_bytes: int = 64 * 1024
    head_s: float = 20.0
    """From the first byte of a head to its last."""
    handshake_s: float = 20.0
    """Of TLS."""
    body_s: float = 30.0
    """Before a body has to come at `body_bytes_per_s` on average."""
    body_bytes_per_s: float = 1024.0
    look_every_s: float = 1.0
    """How exactly all this is kept."""
    idle_s: float = 120.0
    """Between two requests on one connection."""
    stall_s: float = 120.0
    """How long a caller may take nothing of what waits for it."""
    linger_s: float = 2.0
    """For a caller to read why it was refused while it still sends; closed at once, it would see a reset instead."""
    ahead_bytes: int = 64 * 1024
    """What is read of the next request while one is served."""
    memory_bytes: int = MIB
    """A larger body goes to a file."""
    all_memory_bytes: int = 64 * MIB
    """What all waiting bodies may take before the next one goes to a file whatever its size."""
    loading_after_s: float = 1.0
    loading_every_s: float = 5.0
    connect_s: float = 10.0
    drain_s: float = 300.0
    """For an answer that nobody reads any more, where the model's server must not be cut off."""
    drain_bytes: int = 64 * MIB
    unread_bytes: int = 4 * MIB
    """What may wait for a caller of a stream of the hub's own, which cannot be slowed down."""
    kept_connections: int = 64
    """Idle ones to one instance."""
    known_heads: int = 1024
    """Of callers; of an instance's answers, a sixteenth of that."""
    few: int = 4
    """Requests under way with which each write is made at once."""
    hub_unread_bytes: int = 256 * MIB
    """What may wait for the hub. One that leaves more unread is gone."""
