"""What pytest collects: one question a test; the run answers it."""
