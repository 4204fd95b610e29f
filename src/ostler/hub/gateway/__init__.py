"""The model gateway on the hub's loop: its scheduler, its instances on the ledger, and the link to its relay."""
