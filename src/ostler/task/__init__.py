"""What runs inside a task's own process."""
