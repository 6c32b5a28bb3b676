"""What is true of each subject, and what to do about it."""
