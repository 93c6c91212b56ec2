"""The documentation's pages that are made of what the program knows of itself."""
