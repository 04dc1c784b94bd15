"""What must not repeat: OpenSSL, uuid, secrets, names of temporary files."""

# %% setup
import secrets
import ssl
import tempfile
import uuid


def unique_all():
    names = next(tempfile._get_candidate_names())
    return [ssl.RAND_bytes(8).hex(), uuid.uuid4().hex, secrets.token_hex(8), names]


unique_all()

# %% change
carried["unique"] = unique_all()

# %% check
unique_now = unique_all()
assert all(a != b for a, b in zip(unique_now, carried["unique"])), (unique_now, carried)
