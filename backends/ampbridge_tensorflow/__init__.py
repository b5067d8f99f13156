"""Mixed precision for TensorFlow 2 with Keras 3. Importing this imports neither."""
