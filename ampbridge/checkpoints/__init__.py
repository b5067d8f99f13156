"""What a training is saved as, and files that are written whole or not at all."""
