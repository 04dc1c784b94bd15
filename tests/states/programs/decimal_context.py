"""The context of decimal arithmetic."""

# %% setup
import decimal

decimal.getcontext().prec = 7
decimal.getcontext().rounding = decimal.ROUND_UP

# %% change
decimal.getcontext().prec = 28

# %% check
assert decimal.getcontext().prec == 7
assert str(decimal.Decimal(1) / 3) == "0.3333334"
