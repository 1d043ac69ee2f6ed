"""What DuckDB takes to merge waves of records, in the ways that suit it: with_duckdb.py FOLDER.

Reads the path of each wave from stdin, a file of rows as dfq writes them, and prints the seconds of each way as JSON.
At the end it prints what it holds. A wave is made a Parquet file before the clock starts. Of two records of a key the one
with the later (updated_at, ulid) counts. All ways end with their bytes on the disk.

upsert     a table with a primary key, INSERT ... ON CONFLICT DO UPDATE
merge      a table without one, MERGE INTO
window     a Parquet file that is written anew, row_number() over each key
aggregate  the same with arg_max()
"""

import json
import os
import sys
import time

import duckdb

FOLDER = sys.argv[1]
COLUMNS = {
    "key": "VARCHAR",
    "updated_at": "TIMESTAMP",
    "ulid": "VARCHAR",
    "deleted": "BOOLEAN",
    "name": "VARCHAR",
    "employees": "BIGINT",
    "city": "VARCHAR",
    "country": "VARCHAR",
    "about": "VARCHAR",
}
NAMES = ", ".join(COLUMNS)
LATER = "({0}.updated_at, {0}.ulid) > (t.updated_at, t.ulid)"


class Table:
    """A database of its own, as a file."""

    def __init__(self, name: str, key: str) -> None:
        self.db = duckdb.connect(f"{FOLDER}/{name}.duckdb")
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        self.db.execute(f"CREATE TABLE t ({columns.replace('VARCHAR', 'VARCHAR ' + key, 1)})")

    def holds(self) -> list:
        return list(self.db.execute("SELECT count(*), sum(employees)::BIGINT FROM t").fetchone())


class Upsert(Table):
    def __init__(self) -> None:
        super().__init__("upsert", "PRIMARY KEY")
        self.sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "key")

    def take(self, wave: str) -> None:
        later = LATER.format("excluded")
        self.db.execute(
            f"INSERT INTO t SELECT * FROM '{wave}' ON CONFLICT (key) DO UPDATE SET {self.sets} WHERE {later}"
        )


class Merge(Table):
    def __init__(self) -> None:
        super().__init__("merge", "")
        self.sets = ", ".join(f"{name} = w.{name}" for name in COLUMNS if name != "key")

    def take(self, wave: str) -> None:
        later = LATER.format("w")
        self.db.execute(
            f"MERGE INTO t USING '{wave}' w ON t.key = w.key WHEN MATCHED AND {later} THEN UPDATE SET {self.sets} "
            "WHEN NOT MATCHED THEN INSERT BY NAME *"
        )


class Rewrite:
    """A Parquet file that is replaced."""

    def __init__(self, name: str, query: str) -> None:
        self.query, self.file, self.next = query, f"{FOLDER}/{name}.parquet", f"{FOLDER}/{name}.next"

    def take(self, wave: str) -> None:
        files = [file for file in [self.file, wave] if os.path.exists(file)]
        query = self.query.format(f"read_parquet({files})")
        duckdb.execute(f"COPY ({query}) TO '{self.next}' (FORMAT parquet)")
        synced(self.next)
        os.rename(self.next, self.file)
        synced(FOLDER)

    def holds(self) -> list:
        return list(duckdb.execute(f"SELECT count(*), sum(employees)::BIGINT FROM '{self.file}'").fetchone())


def synced(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def staged(wave: str) -> str:
    """The wave as a Parquet file."""
    to = f"{wave}.parquet"
    duckdb.execute(
        f"COPY (SELECT * FROM read_csv('{wave}', delim=chr(31), quote='', escape='', new_line='\\n', header=false, "
        f"auto_detect=false, columns={COLUMNS})) TO '{to}' (FORMAT parquet)"
    )
    return to


WAYS = {
    "upsert": Upsert(),
    "merge": Merge(),
    "window": Rewrite(
        "window",
        f"SELECT {NAMES} FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY updated_at DESC, ulid DESC) AS nth "
        "FROM {}) WHERE nth = 1",
    ),
    "aggregate": Rewrite(
        "aggregate", "SELECT unnest(arg_max(r, (r.updated_at, r.ulid))) FROM {} AS r GROUP BY r.key"
    ),
}

for line in sys.stdin:
    wave = staged(line.strip())
    took = {}
    for name, way in WAYS.items():
        os.sync()
        began = time.perf_counter()
        way.take(wave)
        took[name] = time.perf_counter() - began
    os.remove(wave)
    print(json.dumps(took), flush=True)
print(json.dumps({name: way.holds() for name, way in WAYS.items()}), flush=True)
