"""Reads an index in a folder with nothing but Python's csv and json: python3 examples/read_index.py FOLDER

Prints what `dfq index scan` prints, for records that are compacted. The rule for escapes is all there is to it.
"""
import csv, json, pathlib, re, sys

csv.field_size_limit(1 << 20)
LETTERS = {"0": "", "_": "\x1f", "^": "\x1e", "J": "\n", "M": "\r", "@": "\0", "P": "\x10"}
# What Frictionless calls the types; a datetime stays a text.
TYPES = {"integer": json.loads, "number": json.loads, "boolean": json.loads, "any": json.loads}


def unescape(field):
    return re.sub("\x10([0_^JM@P])", lambda found: LETTERS[found[1]], field)


folder = pathlib.Path(sys.argv[1])
package = json.loads((folder / "datapackage.json").read_text(encoding="utf-8"))
columns = package["resources"][0]["schema"]["fields"]
for shard in sorted(folder.glob("shards/*.usv")):
    with open(shard, newline="", encoding="utf-8") as file:
        for row in csv.reader(file, delimiter="\x1f", quoting=csv.QUOTE_NONE):
            if row[3] == "true":  # _deleted
                continue
            # The key, three columns that dfq keeps, then the fields. Nothing is null, and a short row ends in nulls.
            fields = list(zip(columns, row))
            record = {
                column["name"]: TYPES.get(column["type"], str)(unescape(field))
                for column, field in fields[:1] + fields[4:]
                if field != ""
            }
            print(json.dumps(record, ensure_ascii=False))
