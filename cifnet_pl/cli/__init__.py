"""The command line: one file for each sub-command, and all knowledge of LightningCLI."""
