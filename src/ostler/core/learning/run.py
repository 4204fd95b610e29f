"""One attempt that is over."""


class Run:
    __slots__ = (
        "endless",
        "lacked",
        "limit_s",
        "memory_had_mib",
        "memory_mib",
        "outcome",
        "ran_s",
        "vram_had_mib",
        "vram_mib",
    )

    def __init__(
        self,
        ran_s: float,
        outcome: str,
        endless: bool = False,
        limit_s: float = 0.0,
        memory_mib: int = 0,
        vram_mib: int = 0,
        memory_had_mib: int = 0,
        vram_had_mib: int = 0,
        lacked: str = "",
    ) -> None:
        self.ran_s = ran_s
        self.outcome = outcome
        """succeeded, failed, cut (it would have gone on)"""
        self.endless = endless
        """A service: how long it ran says nothing."""
        self.limit_s = limit_s
        """The user's own; 0: none."""
        self.memory_mib = memory_mib
        self.vram_mib = vram_mib
        """What it took at most."""
        self.memory_had_mib = memory_had_mib
        self.vram_had_mib = vram_had_mib
        """What there was for it: its machine's memory, its devices'."""
        self.lacked = lacked
        """`vram` or `memory`: what it ran out of."""
