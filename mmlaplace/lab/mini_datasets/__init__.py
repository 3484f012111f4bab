"""Small data sets of the images in scikit-image and scikit-learn, and Fashion-MNIST."""
