"""How well do alerts warn before values become NaN, and how many runs are saved if training reacts to the alerts? The
benchmark measures both through the service.
"""
