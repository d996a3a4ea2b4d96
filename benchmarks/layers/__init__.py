"""Our layers beside public ones of the same weights: what agrees (tests/references) and what each costs (`__main__`).

Every other library is imported when one of its pairs is made, never before: none belongs to this project's environment.
"""
