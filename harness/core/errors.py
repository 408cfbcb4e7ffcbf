"""The one error that a program turns into a line and an exit code."""


class UserError(Exception):
    """Input that cannot be used, or an environment that cannot do what was asked.

    Its text is one line that says what is wrong, where, and what to do about it. ``conform`` prints it and exits with 2,
    pytest with 4. Whatever else is raised is a fault of the harness and shows its traceback.
    """
