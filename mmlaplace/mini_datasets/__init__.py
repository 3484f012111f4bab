"""Small data sets of the images in scikit-image and scikit-learn, made without a download."""
