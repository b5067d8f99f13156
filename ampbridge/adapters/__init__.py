"""The bridge to the adapters: the protocol they fulfil, how they are found, and what they share."""
