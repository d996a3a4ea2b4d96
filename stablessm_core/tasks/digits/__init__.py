"""The 8 x 8 digits that come with scikit-learn, read pixel by pixel."""
