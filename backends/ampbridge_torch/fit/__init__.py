"""Training loops of others: Lightning's, and those of Hugging Face."""
