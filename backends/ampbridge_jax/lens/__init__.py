"""What the lens sees: ops, gradients, memory; and what it gives back."""
