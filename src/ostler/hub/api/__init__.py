"""The HTTP API: routes declared once, with who may call them; everything else about them follows from that."""
