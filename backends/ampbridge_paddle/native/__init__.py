"""The framework's own mixed precision: its scaler, its policy, its loop by hand."""
