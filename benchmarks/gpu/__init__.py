"""What Ostler does with a real NVIDIA GPU (run.sh)."""
