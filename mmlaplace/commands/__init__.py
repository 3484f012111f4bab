"""Parts of the command line tools: arguments, files, and scripts in separate processes."""
