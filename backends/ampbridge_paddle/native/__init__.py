"""The framework's own mixed precision: its scaler and its policy."""
