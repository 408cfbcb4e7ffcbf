"""The conformance run's options and hooks, for any ini-file other than pyproject.toml, which loads the plugin earlier."""

pytest_plugins = ("conform.plugin",)
