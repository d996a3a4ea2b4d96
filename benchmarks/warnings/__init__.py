"""How well do alerts warn before values become NaN, how often do they warn of nothing, and how many runs are saved if training
reacts to them?"""
