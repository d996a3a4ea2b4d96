"""Induction heads: what stood behind the trigger before, when the trigger comes again."""
