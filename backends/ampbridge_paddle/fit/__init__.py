"""The framework's own training loop in mixed precision."""
