"""Commands that keep a store sound: check, salvage, compact, snapshot, crashtest, bench."""
