"""Small data sets of real images that packages bring, made without a download."""
