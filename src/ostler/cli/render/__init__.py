"""What people read. Documents come in as the hub sent them; text for a terminal, or JSON, goes out."""
