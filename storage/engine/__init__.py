"""One open store per process: opened, mapped, grown, compacted, closed."""
