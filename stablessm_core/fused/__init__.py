"""A whole StableSSM layer as one operator. It saves almost no states, because the backward pass recomputes the states."""
