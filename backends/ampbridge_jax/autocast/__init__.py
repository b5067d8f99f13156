"""The region: which ops run in which precision, natively or simulated."""
