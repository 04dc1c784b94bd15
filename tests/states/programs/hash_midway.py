"""A digest and a decompression in the middle of their data (OpenSSL, zlib)."""

# %% setup
import hashlib
import zlib

hash_data = bytes(range(256)) * 1000
hash_packed = zlib.compress(hash_data)
hash_it = hashlib.sha256(hash_data[:1000])
hash_zlib = zlib.decompressobj()
hash_out = hash_zlib.decompress(hash_packed[:500])

# %% check
hash_it.update(hash_data[1000:])
assert hash_it.digest() == hashlib.sha256(hash_data).digest()
assert hash_out + hash_zlib.decompress(hash_packed[500:]) == hash_data
