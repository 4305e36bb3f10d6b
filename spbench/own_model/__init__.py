"""A model of your own: made parallel by switches, and proved equal to one device. Public."""
