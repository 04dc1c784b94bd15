"""A listing of a directory, half read (os.scandir)."""

# named: half read

# %% setup
import os

os.makedirs("listed")
listing_all = {f"{place}.txt" for place in range(300)}
for listing_name in listing_all:
    open(f"listed/{listing_name}", "w").close()
listing_rest = os.scandir("listed")
listing_seen = [next(listing_rest).name for _ in range(100)]

# %% change
next(listing_rest)

# %% check
listing_now = listing_seen + [entry.name for entry in listing_rest]
assert len(listing_now) == 300 and set(listing_now) == listing_all
