"""The live view of the fleet. Only `ostler top` loads this, and with it textual."""
