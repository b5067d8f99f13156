"""The loss scale: the one rule, the scaler that follows it, and the settings of other libraries' scalers."""
