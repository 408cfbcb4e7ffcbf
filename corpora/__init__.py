"""Embedded texts and the tiny model: the grammar, the corpus builder and the trainer."""
