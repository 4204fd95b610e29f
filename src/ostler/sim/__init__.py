"""The real core in a world of its own: a virtual clock, model workers, and a network that misbehaves by a seed."""
