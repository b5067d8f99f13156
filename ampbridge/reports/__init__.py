"""What is told about hardware, models, policies and op lists, and the tables that tell it."""
