"""Views over rows. They read rows only and run nothing."""
