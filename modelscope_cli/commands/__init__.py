"""What is typed: one folder a command, with its options, its table and its images."""
