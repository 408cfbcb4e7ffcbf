"""Pure functions of arrays: bounds, comparison, statuses. numpy and the standard library, Python 3.8 or later."""
