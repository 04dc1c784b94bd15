"""The locale of C."""

# %% setup
import locale

locale_before = locale.setlocale(locale.LC_ALL)
locale_chosen = locale.setlocale(locale.LC_ALL, "C.UTF-8")

# %% change
locale.setlocale(locale.LC_ALL, "C")

# %% check
assert locale.setlocale(locale.LC_ALL) == locale_chosen
