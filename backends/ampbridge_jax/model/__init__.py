"""A model fitted to a policy: its calls, its parameters, the way back."""
