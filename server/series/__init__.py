"""The recorded values of runs: storing, reading at any zoom level, deriving, compacting and encoding them."""
