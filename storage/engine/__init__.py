"""One LMDB environment per store and process: opened, mapped, grown, closed."""
