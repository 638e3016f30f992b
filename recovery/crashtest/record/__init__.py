"""What a process did to its files, and what a power cut may leave of them."""
