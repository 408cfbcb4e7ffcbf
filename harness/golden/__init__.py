"""The PyTorch side: load a checkpoint, export it, decode it in float64, record the bundle. Nothing else imports this."""
