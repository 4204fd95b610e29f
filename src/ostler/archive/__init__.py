"""Archives that come from others: read with care, unpacked whole or not at all."""
