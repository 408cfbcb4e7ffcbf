"""What pytest collects: thin questions, which replay answers."""
