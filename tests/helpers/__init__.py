"""What tests of several levels share."""
