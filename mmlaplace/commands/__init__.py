"""What the command line tools share: arguments, files, scripts in processes of their own."""
