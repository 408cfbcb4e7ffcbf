"""The PyTorch side: load a checkpoint, export it, decode it in float64, record the bundle. Nothing else imports this."""


def first_line(error: BaseException) -> str:
    """First line of an error's text, or its class when it has none: libraries answer with whole tracebacks."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
